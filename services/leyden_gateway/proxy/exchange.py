"""One try of a call at one model server, streamed or not.

Invariants:
- a try whose stream has shown the client something is final, whatever becomes of it;
- an answer is complete only if upstream said so: a stream that ends early is an error, with what had arrived.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from leyden.schemas import Model
from leyden_gateway import strict_json
from leyden_gateway.protocols import Malformed, ModelProtocol, sse
from leyden_gateway.protocols.openai import are_integers, choices_asked
from leyden_gateway.proxy.client import Client, ClientGone, Patience
from leyden_gateway.proxy.connections import Connection, UpstreamFailed, UpstreamSilent
from leyden_gateway.proxy.upstream import Outcome, Upstream, failure, parsed, quoted
from leyden_gateway.settings import GatewaySettings

JSON = dict[str, Any]

_CLIENT_GONE_STATUS = 499
_MALFORMED_STATUS = 502
_NO_PROMPT = {"prompt_token_ids": None}
_TRAILER_SECONDS = 0.5
_MAX_TRAILER_BYTES = 64 << 10


class Exchange:
    """A prepared request, to be tried at one server or several."""

    def __init__(
        self, upstream: Upstream, settings: GatewaySettings, client: Client, protocol: ModelProtocol, asked: JSON
    ) -> None:
        self._upstream = upstream
        self._settings = settings
        self._client = client
        self._protocol = protocol
        self._asked = asked
        self._relay = protocol.relay(asked)
        self.visible = False
        """Whether the client has been sent any part of an answer."""

    async def attempt(self, model: Model, body: JSON, payload: bytes) -> Outcome:
        """Ask one server; `payload` is `body` encoded.

        Raises:
            UpstreamFailed: it gave no answer, and nothing of one has been shown.
        """
        started = perf_counter()
        try:
            if body.get("stream"):
                outcome = await self._streamed(model, body, payload)
            else:
                outcome = await self._whole(model, body, payload)
        except ClientGone:
            outcome = self._gone(model)
        outcome.seconds = perf_counter() - started
        return outcome

    def last_words(self, outcome: Outcome) -> bytes:
        """What ends the client's stream once the outcome is on record."""
        if outcome.ok:
            return self._relay.finish()
        return self._protocol.error_event(outcome.status, outcome.message)

    async def _whole(self, model: Model, body: JSON, payload: bytes) -> Outcome:
        try:
            async with self._patience():
                reply = await self._upstream.post(model, self._protocol.upstream_path, payload)
                try:
                    return await self._read(model, body, reply)
                finally:
                    self._upstream.release(reply)
        except TimeoutError:
            raise UpstreamSilent(
                f"{model.shown_endpoint}: no answer in {self._settings.upstream_timeout_seconds:g} s"
            ) from None

    def _patience(self) -> Patience:
        return self._client.patience(self._settings.upstream_timeout_seconds, self._settings.disconnect_grace_seconds)

    async def _read(self, model: Model, body: JSON, reply: Connection) -> Outcome:
        try:
            raw = await self._upstream.read(reply)
        except ValueError as error:
            return _malformed(model, failure(str(error), "malformed_answer"), str(error))
        response, fault = parsed(raw, reply.content_type, reply.encoding, any_depth=True)
        # A prompt's ids may be most of the answer; once they are known to be integers, nobody has to look again.
        rest = response | _NO_PROMPT if are_integers(response.get("prompt_token_ids")) else response
        if strict_json.too_deep(rest):
            response, fault = quoted(raw, f"not JSON: {strict_json.TOO_DEEP}")
        refused = 400 <= reply.status < 600
        if (fault and not raw) or not (refused or reply.status < 300):
            response, fault = quoted(
                raw, f"{model.shown_endpoint} gave status {reply.status} {_instead_of_an_answer(raw)}"
            )
        if refused:
            return Outcome(reply.status, response, model, fault)
        if not fault:
            try:
                self._protocol.check(rest, body)
            except Malformed as error:
                fault = str(error)
        if fault:
            return _malformed(model, response, fault)
        return Outcome(reply.status, response, model, raw=raw)

    async def _streamed(self, model: Model, body: JSON, payload: bytes) -> Outcome:
        self._relay = self._protocol.relay(self._asked)
        assembly = self._protocol.assembly()
        status, fault = _MALFORMED_STATUS, ""
        try:
            async with self._patience():
                reply = await self._upstream.post(model, self._protocol.upstream_path, payload)
                try:
                    if reply.status >= 300 or not _is_stream(reply):
                        outcome = await self._read(model, body, reply)
                        if outcome.ok:
                            return _malformed(model, outcome.response, "a whole answer where a stream was asked for")
                        return outcome
                    await self._pass_on(reply, assembly, choices_asked(body))
                finally:
                    self._upstream.release(reply)
        except TimeoutError:
            status, fault = 504, f"{model.shown_endpoint}: no end in {self._settings.upstream_timeout_seconds:g} s"
            if not self.visible:
                raise UpstreamSilent(fault) from None
        except UpstreamFailed as error:
            fault = f"the stream broke: {error}"
            if not self.visible:
                raise
        except ClientGone:
            return self._gone(model, assembly.response())
        except Malformed as error:
            fault = str(error)
        response = assembly.response()
        if not fault:
            try:
                self._protocol.check(response, body)
            except Malformed as error:
                fault = str(error)
        if fault:
            response |= failure(fault, "interrupted_stream")
            return Outcome(status, response, model, fault, final=True)
        return Outcome(200, response, model)

    async def _pass_on(self, reply: Connection, assembly: Any, asked_choices: int) -> None:
        """Show the client what may be shown, as it comes.

        Without its end marker a stream has ended only if all `asked_choices` have; with it, a server that knows no
        `n` may have given fewer.

        Raises:
            Malformed: a chunk is not one, or the stream ended before its end.
        """
        events = sse.Events(self._settings.max_answer_bytes)
        feed, relay, client = assembly.feed, self._relay.feed, self._client
        done = False
        while data := await reply.some():
            out = b""
            try:
                for payload in events.feed(data):
                    if payload == sse.DONE:
                        done = True
                        break
                    chunk = strict_json.loads(payload)
                    feed(chunk)
                    out += relay(chunk)
            except ValueError as error:
                raise error if isinstance(error, Malformed) else Malformed(f"not a chunk: {error}") from error
            finally:
                if out and not client.gone:
                    self.visible = True
                    await client.stream(out)
            if done:
                await _drain(reply)
                break
        if not assembly.finished or not (done or len(assembly.response()["choices"]) >= asked_choices):
            raise Malformed("the stream ended before every choice had its finish reason")

    def _gone(self, model: Model, response: JSON | None = None) -> Outcome:
        fault = "the client went away and upstream was cancelled"
        return Outcome(_CLIENT_GONE_STATUS, (response or {}) | failure(fault, "client_gone"), model, fault, final=True)


def _malformed(model: Model, response: JSON, fault: str) -> Outcome:
    return Outcome(_MALFORMED_STATUS, response, model, fault, final=True)


def _instead_of_an_answer(raw: bytes) -> str:
    return "with a body that is no answer" if raw else "without a body"


def _is_stream(reply: Connection) -> bool:
    return reply.content_type == "text/event-stream" and not reply.encoding


async def _drain(reply: Connection) -> None:
    """Read to the end of the body, which is due at once, so that the connection can be used again."""
    if reply.complete:
        return
    try:
        async with asyncio.timeout(_TRAILER_SECONDS):
            await reply.read(_MAX_TRAILER_BYTES)
    except (TimeoutError, ValueError, UpstreamFailed):
        return
