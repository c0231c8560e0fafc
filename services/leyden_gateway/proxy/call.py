"""The life of one model call.

Invariants:
- nothing is forwarded before the call is open in the log, and no further try before the pause was looked at again;
- the agent gets what looks complete only after it is on record; if it can't be recorded the agent gets an error;
- what a run holds through (a pause, no server, no answer) costs an agent time, up to the run's limit, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
from functools import cached_property
from typing import Any

import orjson
import structlog

from leyden.log import Location
from leyden.log.errors import RolloutMissing, RunPaused
from leyden.schemas import Model
from leyden.triplet import UNDELIVERED
from leyden_gateway import metrics
from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import NoServers
from leyden_gateway.protocols import ModelProtocol
from leyden_gateway.protocols.openai import finish_reasons
from leyden_gateway.protocols.protocol import Wanted
from leyden_gateway.proxy import endpoints
from leyden_gateway.proxy.client import Client
from leyden_gateway.proxy.connections import UpstreamFailed
from leyden_gateway.proxy.exchange import Exchange
from leyden_gateway.proxy.hold import Hold
from leyden_gateway.proxy.logged import LoggedCall
from leyden_gateway.proxy.prefixes import Creation
from leyden_gateway.proxy.recall import recall
from leyden_gateway.proxy.record import model_request, tokens_of
from leyden_gateway.proxy.sampling import Mode, apply_rules
from leyden_gateway.proxy.undelivered import claim, is_retry, request_key
from leyden_gateway.proxy.upstream import Outcome, back_off, failure
from leyden_gateway.views import RunView

JSON = dict[str, Any]

_log = structlog.get_logger("leyden.gateway.call")

_UNANSWERED_PAUSE_SECONDS = 8.0
_MAX_BACK_OFF_SECONDS = 12.0


class ModelCall:
    """One request of an agent, from its parsed body to its answer."""

    def __init__(
        self,
        gateway: Gateway,
        client: Client,
        protocol: ModelProtocol,
        *,
        rollout_id: str,
        attempt: str,
        mode: Mode,
        nonce: str | None,
        asked: JSON,
        raw: bytes,
    ) -> None:
        """`protocol` serves this call alone; `nonce` is that of an agent's token, None for the admin; `asked` is `raw`,
        decoded.
        """
        self._gateway = gateway
        self._client = client
        self._protocol = protocol
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._mode = mode
        self._nonce = nonce
        self._asked = asked
        self._raw = raw
        self._started = time.perf_counter()
        self._upstream_seconds = 0.0
        self._orphaned: asyncio.Event | None = None

    async def serve(self) -> None:
        """Make the call and answer it.

        Raises:
            ClientGone: the client went away before anything was sampled; nothing is to be answered.
            Any error of `problems.STATUSES`: nothing was answered; a stream that has begun wants an error event.
        """
        gateway = self._gateway
        location = await gateway.locations.locate(self._rollout_id)
        if self._asked.get("stream"):
            self._client.keep_alive(self._gateway.settings.keep_alive_seconds, self._protocol.keep_alive)
        self._client.on_gone = self._orphan
        try:
            if is_retry(self._client.headers) and await self._answered_from_record(location):
                return
            await self._protocol.prepare(self._asked, self._recall)
            while True:
                try:
                    await self._serve_in(location)
                    return
                except RolloutMissing:
                    if self._client.started or not await self._gateway.locations.moved(self._rollout_id, location):
                        raise
                    location = await self._gateway.locations.locate(self._rollout_id)
        finally:
            if self._orphaned is not None:
                self._gateway.orphans.remove(self._rollout_id, self._attempt, self._key, self._orphaned)

    async def _recall(self, wanted: Wanted) -> JSON | None:
        """The data of an earlier call of the attempt, by the rollout as the log knows it now."""
        location = await self._gateway.log.locate(self._rollout_id)
        return await recall(self._gateway.log.run(location.run), self._rollout_id, self._attempt, wanted)

    async def _serve_in(self, location: Location) -> None:
        gateway = self._gateway
        self._creation = Creation(location.run, self._rollout_id, location.nonce)
        self._call = LoggedCall(
            gateway.replica, gateway.log.run(location.run), self._rollout_id, self._attempt, self._nonce
        )
        self._hold = Hold(gateway.waiting, gateway.admission, self._client, location.run, self._rollout_id)
        try:
            await self._until_answered(location.run)
        finally:
            await self._call.take_off()
            await self._hold.end()

    async def _until_answered(self, run: str) -> None:
        aborted = 0
        while True:
            view = await self._open(run)
            try:
                exchange, body, changed = self._prepare(view)
                outcome = await self._forward(view, exchange, body)
            except RunPaused as paused:
                await self._hold.until_changed(view, paused)
                continue
            except NoServers as none:
                await self._call.take_off()
                await self._hold.until_changed(view, none)
                continue
            unanswered = outcome.status in endpoints.FAILED_STATUSES and not outcome.final
            if unanswered and not exchange.visible and self._hold.possible(view):
                await self._call.take_off()
                await self._hold.a_while(view, _UNANSWERED_PAUSE_SECONDS)
                continue
            if not outcome.ok or "abort" not in finish_reasons(outcome.response):
                await self._finish(outcome, exchange, body, changed)
                return
            await self._record(outcome, body, changed, delivered=False, spends=False)
            aborted += 1
            if exchange.visible or not (self._hold.possible(view) or aborted < self._gateway.settings.upstream_tries):
                fault = "the model server aborted the answer"
                outcome = Outcome(502, failure(fault, "aborted"), outcome.model, fault, final=True)
                await self._answer(outcome, exchange)
                return
            await self._back_off(min(aborted - 1, 5))

    async def _open(self, run: str) -> RunView:
        """Open the call in the log, held while its run is, and return the view of the run that holds for it."""
        views = self._gateway.views
        while True:
            try:
                revision = await self._call.open()
            except RunPaused as paused:
                await self._hold.until_changed(await views.recent(run), paused)
            else:
                return await views.at(run, revision)

    def _prepare(self, view: RunView) -> tuple[Exchange, JSON, JSON]:
        """The exchange, the upstream body, and what the agent had asked for where the run's rules differ.

        Raises:
            NoServers: the model has no server.
        """
        model = view.upstream_model(self._asked.get("model"))
        if not view.serving(model):
            raise NoServers(model)
        body = self._protocol.upstream_body(self._asked)
        changed = apply_rules(body, view.settings, self._mode, model)
        training = self._mode is Mode.TRAIN
        self._protocol.capture(
            body,
            log_probs=training and view.settings.include_log_probs,
            routed_experts=training and view.settings.return_routed_experts,
        )
        gateway = self._gateway
        return Exchange(gateway.upstream, gateway.settings, self._client, self._protocol, self._asked), body, changed

    async def _forward(self, view: RunView, exchange: Exchange, body: JSON) -> Outcome:
        """Ask servers until one answers, up to the number of tries.

        Raises:
            RunPaused: the run was paused between two tries; the call is no longer open.
            NoServers: the model's servers were taken off between two tries.
            CallLost: its rollout ended, or another attempt took over.
            ClientGone: the client went away between two tries.
        """
        health, settings = self._gateway.health, self._gateway.settings
        preferred = endpoints.ranked(view.serving(body["model"]), self._rollout_id)
        payload = orjson.dumps(body)
        started = time.perf_counter()
        try:
            outcome = await self._try(exchange, health.best(preferred), body, payload)
            while outcome.retried and not exchange.visible and outcome.tries < settings.upstream_tries:
                tries = outcome.tries
                _log.info(
                    "upstream try failed",
                    rollout_id=self._rollout_id,
                    endpoint=outcome.model.shown_endpoint,
                    status=outcome.status,
                    reason=outcome.message,
                    tries=tries,
                )
                metrics.RETRIES.inc()
                await self._back_off(tries - 1)
                view = await self._gateway.views.at(view.run, await self._call.recheck())
                preferred = endpoints.ranked(view.serving(body["model"]), self._rollout_id)
                if not preferred:
                    raise NoServers(body["model"])
                outcome = await self._try(exchange, health.best(preferred), body, payload)
                outcome.tries = tries + 1
            return outcome
        finally:
            self._upstream_seconds += time.perf_counter() - started

    async def _try(self, exchange: Exchange, model: Model, body: JSON, payload: bytes) -> Outcome:
        health = self._gateway.health
        try:
            outcome = await exchange.attempt(model, body, payload)
        except UpstreamFailed as failed:
            health.failed(model.endpoint)
            return Outcome(failed.status, failure(str(failed), "no_answer"), model, str(failed))
        if outcome.status in endpoints.FAILED_STATUSES and not outcome.final:
            health.failed(model.endpoint)
        else:
            health.answered(model.endpoint)
        return outcome

    async def _finish(self, outcome: Outcome, exchange: Exchange, body: JSON, changed: JSON) -> None:
        call_id = self._call.call_id
        await self._record(outcome, body, changed, delivered=not self._client.gone and not outcome.fault)
        if outcome.ok and self._client.gone:
            data = {"call_id": call_id, "request_key": self._key}
            await self._call.note(UNDELIVERED, data, f"{UNDELIVERED}-{call_id}")
        await self._answer(outcome, exchange)

    async def _record(
        self, outcome: Outcome, body: JSON, changed: JSON, *, delivered: bool, spends: bool = True
    ) -> None:
        """Put the outcome on record, and take it from the attempt's budget if it `spends`.

        Raises what `Recorder.record` does.
        """
        data = model_request(
            outcome,
            request=body,
            asked=changed,
            original=self._protocol.original(self._asked),
            path=self._protocol.path,
            mode=self._mode,
            call_id=self._call.call_id,
            delivered=delivered,
        )
        read_bytes = len(self._raw) + len(outcome.raw)
        tokens = tokens_of(outcome.response) if spends else None
        await self._gateway.recorder.record(
            self._call, self._creation, data, server=outcome.model, tokens=tokens, read_bytes=read_bytes
        )
        metrics.count_call(self._protocol.upstream_path, outcome.response, ok=outcome.ok, delivered=delivered)
        metrics.UPSTREAM.observe(outcome.seconds)

    async def _answer(self, outcome: Outcome, exchange: Exchange) -> None:
        client, protocol = self._client, self._protocol
        if client.gone:
            return
        if self._asked.get("stream") and (outcome.ok or client.started):
            await client.stream(exchange.last_words(outcome), last=True)
        elif not outcome.ok:
            wrong = (
                protocol.problem(outcome.status, outcome.message)
                if outcome.fault
                else protocol.refusal(outcome.status, outcome.response)
            )
            await client.respond(outcome.status, orjson.dumps(wrong))
        else:
            answer = protocol.answer(outcome.response, self._asked)
            await client.respond(outcome.status, outcome.raw if answer is outcome.response else orjson.dumps(answer))
        elsewhere = self._upstream_seconds + self._hold.seconds
        metrics.ADDED.observe(max(0.0, time.perf_counter() - self._started - elsewhere))

    async def _answered_from_record(self, location: Location) -> bool:
        """Give a retry the answer of its first call, if that is on record and nobody has had it."""
        client, key, settings = self._client, self._key, self._gateway.settings
        running = self._gateway.orphans.find(self._rollout_id, self._attempt, key)
        if running is not None:
            async with client.patience(settings.upstream_timeout_seconds * settings.upstream_tries, grace_seconds=0):
                await running.wait()
        run = self._gateway.log.run(location.run)
        call = await claim(run, self._rollout_id, self._attempt, key, nonce=self._nonce)
        if call is None:
            return False
        self._protocol.restore(call)
        response = call["response"]
        if self._asked.get("stream"):
            await client.stream(self._protocol.replay(response, self._asked), last=True)
        else:
            await client.respond(200, orjson.dumps(self._protocol.answer(response, self._asked)))
        metrics.CALLS.labels(self._protocol.upstream_path, "redelivered").inc()
        return True

    @cached_property
    def _key(self) -> str:
        return request_key(self._protocol.path, self._client.headers, self._raw)

    def _orphan(self) -> None:
        self._orphaned = self._gateway.orphans.add(self._rollout_id, self._attempt, self._key)

    async def _back_off(self, retry: int) -> None:
        """Wait before a further try, unless the client goes away meanwhile."""
        async with self._client.patience(_MAX_BACK_OFF_SECONDS, grace_seconds=0):
            await back_off(retry, random.uniform(0.75, 1.25))
