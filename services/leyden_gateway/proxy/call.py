"""The life of one model call.

Invariants:
- nothing is forwarded before the call is open in the log, and no further try before the pause was looked at again;
- the agent gets what looks complete only after it is on record; if it can't be recorded the agent gets an error;
- every call that was opened is closed, abandoned, or, if this process dies, left to its heartbeat;
- what a run holds through (a pause, no server, no answer) costs an agent time, up to the run's limit, and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any

import orjson
import structlog

from leyden.log import Location
from leyden.log.encoding import encode
from leyden.log.errors import CallLost, LogFull, LogUnavailable, RolloutMissing, RunPaused
from leyden.schemas import Model
from leyden_gateway import metrics
from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import NoServers
from leyden_gateway.protocols import ModelProtocol
from leyden_gateway.protocols.openai import finish_reasons
from leyden_gateway.proxy import endpoints
from leyden_gateway.proxy.client import Client
from leyden_gateway.proxy.exchange import Exchange
from leyden_gateway.proxy.record import model_request
from leyden_gateway.proxy.sampling import Mode, apply_rules
from leyden_gateway.proxy.undelivered import UNDELIVERED, claim, is_retry, request_key
from leyden_gateway.proxy.upstream import Outcome, UpstreamFailed, back_off, failure
from leyden_gateway.views import RunView

JSON = dict[str, Any]

_log = structlog.get_logger("leyden.gateway.call")

_UNANSWERED_STATUSES = endpoints.FAILED_STATUSES
_UNANSWERED_PAUSE_SECONDS = 8.0
_MAX_BACKOFF_SECONDS = 12.0
_THREAD_ABOVE_BYTES = 400_000
"""Encoding a larger response takes over a millisecond."""


class UpstreamAborted(ConnectionError):
    """The model server gave the sampling up; what it had is on record as undelivered."""


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
        """`nonce` is that of an agent's token, None for the admin; `asked` is `raw` decoded."""
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
        self._elsewhere_seconds = 0.0
        self._open_id: str | None = None
        self._held_until: float | None = None
        self._listening: AbstractAsyncContextManager[asyncio.Event] | None = None
        self._rung: asyncio.Event | None = None
        self._orphaned: asyncio.Event | None = None

    async def serve(self) -> None:
        """Make the call and answer it.

        Raises:
            ClientGone: the client went away before anything was sampled; nothing is to be answered.
            Any error of `problems.STATUSES`: nothing was answered; if the client's stream has begun, it wants an error
                event.
        """
        location = await self._gateway.locations.locate(self._rollout_id)
        self._run = self._gateway.log.run(location.run)
        if self._asked.get("stream"):
            self._client.keep_alive(self._gateway.settings.keep_alive_seconds)
        self._client.on_gone = self._orphan
        try:
            if not (is_retry(self._client.headers) and await self._answered_from_record()):
                await self._serve(location)
        finally:
            if self._orphaned is not None:
                self._gateway.orphans.remove(self._rollout_id, self._attempt, self._key, self._orphaned)
            if self._open_id is not None:
                await asyncio.shield(self._abandon())
            if self._listening is not None:
                metrics.HELD.dec()
                await self._listening.__aexit__(None, None, None)

    async def _serve(self, location: Location) -> None:
        aborted = 0
        while True:
            view = await self._open(location)
            try:
                exchange, body, changed = self._prepare(view)
                outcome = await self._forward(view, exchange, body)
            except RunPaused as paused:
                self._closed()
                await self._hold(view, paused)
                continue
            except NoServers as none:
                await self._abandon()
                await self._hold(view, none)
                continue
            if outcome.status in _UNANSWERED_STATUSES and not exchange.visible and self._may_hold(view):
                await self._abandon()
                await self._hold(view, UpstreamFailed(outcome.message), at_most_seconds=_UNANSWERED_PAUSE_SECONDS)
                continue
            if outcome.ok and "abort" in finish_reasons(outcome.response):
                await self._record(outcome, body, changed, delivered=False)
                aborted += 1
                if not exchange.visible and (self._may_hold(view) or aborted < self._gateway.settings.upstream_tries):
                    await self._wait(back_off(min(aborted - 1, 5), _jitter()))
                    continue
                fault = "the model server aborted the answer"
                outcome = Outcome(502, failure(fault, "aborted"), outcome.model, fault, final=True)
                await self._answer(outcome, exchange)
                return
            call_id = await self._record(outcome, body, changed, delivered=not self._client.gone and not outcome.fault)
            if outcome.ok and self._client.gone:
                await self._note_undelivered(call_id)
            await self._answer(outcome, exchange)
            return

    async def _answered_from_record(self) -> bool:
        """Give a retry the answer of its first call, if that is on record and nobody has had it."""
        client, key = self._client, self._key
        running = self._gateway.orphans.find(self._rollout_id, self._attempt, key)
        settings = self._gateway.settings
        if running is not None:
            async with client.patience(settings.upstream_timeout_seconds * settings.upstream_tries, grace_seconds=0):
                await running.wait()
        response = await claim(self._run, self._rollout_id, self._attempt, key, nonce=self._nonce)
        if response is None:
            return False
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

    async def _note_undelivered(self, call_id: str) -> None:
        """Note that nobody was there any more for an answer that is on record, so that a retry may have it."""
        data = {"call_id": call_id, "request_key": self._key}
        try:
            await self._run.events.append(
                self._rollout_id, self._attempt, UNDELIVERED, data, event_id=f"{UNDELIVERED}-{call_id}"
            )
        except (LogUnavailable, LogFull, RolloutMissing) as error:
            _log.warning("undelivered answer not noted", rollout_id=self._rollout_id, call_id=call_id, error=str(error))

    async def _open(self, location: Location) -> RunView:
        """Open the call in the log, holding it while its run does, and return the run's view that holds for it."""
        gateway = self._gateway
        while True:
            call_id = uuid.uuid4().hex
            try:
                opened = await self._run.calls.open(
                    self._rollout_id,
                    self._attempt,
                    call_id,
                    gateway.replica.name,
                    nonce=self._nonce,
                    admin=self._nonce is None,
                )
            except RunPaused as paused:
                await self._hold(await gateway.views.recent(location.run), paused)
                continue
            except RolloutMissing:
                if not await gateway.locations.moved(self._rollout_id, location):
                    raise
                location = await gateway.locations.locate(self._rollout_id)
                self._run = gateway.log.run(location.run)
                continue
            self._open_id = call_id
            gateway.replica.opened(location.run)
            metrics.INFLIGHT.inc()
            return await gateway.views.at(location.run, opened.revision)

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
        self._protocol.capture(
            body,
            log_probs=self._mode is Mode.TRAIN and view.settings.include_log_probs,
            routed_experts=self._mode is Mode.TRAIN and view.settings.return_routed_experts,
        )
        gateway = self._gateway
        return Exchange(gateway.upstream, gateway.settings, self._client, self._protocol, self._asked), body, changed

    async def _forward(self, view: RunView, exchange: Exchange, body: JSON) -> Outcome:
        """Ask servers until one answers, up to the number of tries.

        Raises:
            RunPaused: the run was paused between two tries; the call is no longer open.
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
                    endpoint=outcome.model.endpoint,
                    status=outcome.status,
                    reason=outcome.message,
                    tries=tries,
                )
                metrics.RETRIES.inc()
                await self._wait(back_off(tries - 1, _jitter()))
                await self._run.calls.recheck(self._rollout_id, self._open_id or "")
                outcome = await self._try(exchange, health.best(preferred), body, payload)
                outcome.tries = tries + 1
            return outcome
        finally:
            self._elsewhere_seconds += time.perf_counter() - started

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

    async def _record(self, outcome: Outcome, body: JSON, changed: JSON, *, delivered: bool) -> str:
        """Put the outcome on record, trying again while Redis is away, and return the call's id.

        Raises:
            LogUnavailable: Redis stayed away too long.
            CallLost: the call was lost meanwhile; what it gave is on record as late.
            RolloutMissing: the rollout was freed meanwhile.
        """
        call_id = self._open_id or ""
        data = model_request(
            outcome,
            request=body,
            asked=changed,
            path=self._protocol.path,
            mode=self._mode,
            call_id=call_id,
            delivered=delivered,
        )
        large = len(self._raw) + len(outcome.raw) > _THREAD_ABOVE_BYTES
        payload = await asyncio.to_thread(encode, data) if large else encode(data)
        deadline = time.monotonic() + self._gateway.settings.close_timeout_seconds
        pause = 0.1
        while True:
            try:
                closed = await self._run.calls.close(self._rollout_id, self._attempt, call_id, payload)
                break
            except (LogUnavailable, LogFull) as error:
                metrics.LOG_ERRORS.labels(type(error).__name__).inc()
                if time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)
        self._closed()
        self._count(outcome, delivered=delivered)
        if closed.late:
            raise CallLost(self._rollout_id, call_id)
        return call_id

    async def _answer(self, outcome: Outcome, exchange: Exchange) -> None:
        client, protocol = self._client, self._protocol
        if client.gone:
            return
        if self._asked.get("stream") and (outcome.ok or client.started):
            await client.stream(exchange.last_words(outcome), last=True)
        elif not outcome.ok:
            wrong = protocol.problem(outcome.status, outcome.message) if outcome.fault else outcome.response
            await client.respond(outcome.status, orjson.dumps(wrong))
        else:
            answer = protocol.answer(outcome.response, self._asked)
            await client.respond(outcome.status, outcome.raw if answer is outcome.response else orjson.dumps(answer))
        metrics.ADDED.observe(max(0.0, time.perf_counter() - self._started - self._elsewhere_seconds))

    def _may_hold(self, view: RunView) -> bool:
        return view.holds and (self._held_until is None or time.monotonic() < self._held_until)

    async def _hold(self, view: RunView, reason: Exception, *, at_most_seconds: float | None = None) -> None:
        """Wait until the run has changed, or that long, and return to try again; the first time return at once.

        Raises:
            reason: the run refuses instead of holding, or has held the call for as long as it allows.
            ClientGone: the client went away.
        """
        if not view.holds:
            raise reason
        if self._rung is None:
            # Listen first, look again, and only then wait: so no change falls between looking and listening.
            self._held_until = time.monotonic() + view.settings.hold_timeout_seconds
            listening = self._gateway.waiting.listen(self._run.run, self._rollout_id)
            self._rung = await listening.__aenter__()
            self._listening = listening
            metrics.HELD.inc()
            if at_most_seconds is None:
                return
        left = (self._held_until or 0.0) - time.monotonic()
        if left <= 0:
            raise reason
        started = time.perf_counter()
        try:
            async with self._client.patience(min(left, at_most_seconds or left), grace_seconds=0):
                await self._rung.wait()
        except TimeoutError:
            if at_most_seconds is None:
                raise reason from None
        finally:
            self._elsewhere_seconds += time.perf_counter() - started
        self._rung.clear()

    async def _wait(self, pause: Any) -> None:
        """Let a back-off pass, unless the client goes away meanwhile."""
        async with self._client.patience(_MAX_BACKOFF_SECONDS, grace_seconds=0):
            await pause

    async def _abandon(self) -> None:
        """Take the call off; nothing was sampled."""
        call_id = self._open_id
        self._closed()
        try:
            await self._run.calls.abandon(self._rollout_id, self._attempt, call_id or "")
        except (LogUnavailable, LogFull) as error:
            # It stays open in the log until its rollout ends, which marks it lost.
            _log.warning("call not taken off", rollout_id=self._rollout_id, call_id=call_id, error=str(error))

    def _closed(self) -> None:
        self._open_id = None
        self._gateway.replica.closed(self._run.run)
        metrics.INFLIGHT.dec()

    def _count(self, outcome: Outcome, *, delivered: bool) -> None:
        kind = "error" if not outcome.ok else "ok" if delivered else "undelivered"
        metrics.CALLS.labels(self._protocol.upstream_path, kind).inc()
        metrics.UPSTREAM.observe(outcome.seconds)
        usage = outcome.response.get("usage")
        if isinstance(usage, dict):
            for name in ("prompt", "completion"):
                count = usage.get(f"{name}_tokens")
                if isinstance(count, int):
                    metrics.TOKENS.labels(name).inc(count)


def _jitter() -> float:
    return random.uniform(0.75, 1.25)
