"""One try of one call at one model server.

Invariants:
- what comes back is described, never guessed at: a status, and a response that is either what the server said or an
  error that says what was wrong with it;
- only a server's silence raises; whether to try again is the caller's decision.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from leyden.schemas import Model
from leyden_gateway import strict_json
from leyden_gateway.protocols.openai import error_text
from leyden_gateway.proxy.connections import (
    Address,
    Connection,
    Connections,
    UpstreamUnreachable,
)
from leyden_gateway.settings import GatewaySettings

JSON = dict[str, Any]

RETRIED_STATUSES = frozenset({408, 409, 429})
_MAX_QUOTED_BYTES = 64 << 10

KEEP_ALIVE_SECONDS = 4.0
"""Below uvicorn's 5 s, which model servers use: a pooled connection is let go before the server closes it."""


@dataclass(slots=True)
class Outcome:
    """What a try gave: an HTTP status, and the response as it goes on record.

    `fault` says why a response that came with a good status is none; then `status` is what the agent is told.
    """

    status: int
    response: JSON
    model: Model
    fault: str = ""
    final: bool = False
    """Whether asking again is out of the question, whatever the status."""
    tries: int = 1
    seconds: float = 0.0
    raw: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def retried(self) -> bool:
        """Whether it is a reason to ask again."""
        return not self.final and (self.status >= 500 or self.status in RETRIED_STATUSES)

    @property
    def message(self) -> str:
        """What an agent is told that asked for something else than the upstream's own answer."""
        return self.fault or error_text(self.response.get("error") or self.response)


class Upstream:
    """All model servers."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._connections = Connections(
            limit=settings.upstream_max_connections,
            connect_timeout_seconds=settings.upstream_connect_timeout_seconds,
            idle_seconds=KEEP_ALIVE_SECONDS,
        )
        self._max_answer_bytes = settings.max_answer_bytes
        self._addresses: dict[tuple[str, str], Address] = {}

    async def close(self) -> None:
        self._connections.close()

    async def post(self, model: Model, path: str, body: bytes) -> Connection:
        """Send a request and give the answer once its head is there; to be released, whatever happens.

        The whole try has one deadline, set by the caller; only connecting has its own.

        Raises:
            UpstreamUnreachable: no connection, or it broke; reading the answer raises it too.
            UpstreamSilent: no connection in time.
        """
        try:
            address = self._address(model.endpoint, path)
        except ValueError as error:
            raise UpstreamUnreachable(f"{model.shown_endpoint} is not an address: {error}") from error
        return await self._connections.post(address, body)

    def release(self, answer: Connection) -> None:
        """Let an answer go: read to its end, or cut off."""
        self._connections.release(answer)

    async def read(self, answer: Connection) -> bytes:
        """The whole body of an answer.

        Raises:
            ValueError: it is larger than `max_answer_bytes`.
            UpstreamUnreachable
        """
        return await answer.read(self._max_answer_bytes)

    def _address(self, endpoint: str, path: str) -> Address:
        key = (endpoint, path)
        if key not in self._addresses:
            if len(self._addresses) > 4096:
                self._addresses.clear()
            self._addresses[key] = Address.of(endpoint, path)
        return self._addresses[key]


def parsed(raw: bytes, content_type: str, encoding: str = "", *, any_depth: bool = False) -> tuple[JSON, str]:
    """An answer's body as an object, and what is wrong with it ("" if nothing); its depth, unless that is for later."""
    if encoding not in ("", "identity"):
        return quoted(raw, f"content encoding {encoding}, which was not asked for")
    if content_type and content_type != "application/json" and not content_type.endswith("+json"):
        return quoted(raw, f"content type {content_type}, not JSON")
    try:
        value = strict_json.loads_at_any_depth(raw) if any_depth else strict_json.loads(raw)
    except strict_json.NotJSON as error:
        return quoted(raw, f"not JSON: {error}")
    if not isinstance(value, dict):
        return quoted(raw, f"a JSON {type(value).__name__}, not an object")
    return value, ""


def quoted(raw: bytes, fault: str) -> tuple[JSON, str]:
    """An unreadable answer as it goes on record: the fault, and the text up to 64 KiB."""
    text = raw[:_MAX_QUOTED_BYTES].decode("utf-8", "replace")
    return {"error": {"message": fault, "type": "malformed_answer", "body": text}}, fault


def failure(message: str, kind: str) -> JSON:
    """A response that stands on record for an answer that never came."""
    return {"error": {"message": message, "type": kind}}


def back_off_seconds(retry: int, jitter: float) -> float:
    """The wait before the `retry`-th retry, counting from 0: 0.5 s doubling to 8 s, times `jitter`."""
    return min(0.5 * 2**retry, 8.0) * jitter


async def back_off(retry: int, jitter: float) -> None:
    """Wait before the `retry`-th retry; `jitter` in [0.75, 1.25]."""
    await asyncio.sleep(back_off_seconds(retry, jitter))
