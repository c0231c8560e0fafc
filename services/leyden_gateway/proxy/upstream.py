"""One try of one call at one model server.

Invariants:
- what comes back is described, never guessed at: a status, and a response that is either what the server said or an
  error that says what was wrong with it;
- only a server's silence raises; whether to try again is the caller's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from leyden.schemas import Model
from leyden_gateway import strict_json
from leyden_gateway.protocols.openai import error_text
from leyden_gateway.settings import GatewaySettings

JSON = dict[str, Any]

RETRIED_STATUSES = frozenset({408, 409, 429})
_MAX_QUOTED_BYTES = 64 << 10
_HEADERS = {"content-type": "application/json", "accept": "*/*"}

KEEP_ALIVE_SECONDS = 4.0
"""Below uvicorn's 5 s, which model servers use: a pooled connection is let go before the server closes it."""


class UpstreamFailed(ConnectionError):
    """The server gave no answer; `status` is what the agent is told if no other try succeeds."""

    status = 502


class UpstreamUnreachable(UpstreamFailed):
    """The connection could not be made, or broke."""


class UpstreamSilent(UpstreamFailed):
    """The answer did not come in time."""

    status = 504


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
    """The pool of connections to all model servers."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.upstream_max_connections, keepalive_timeout=KEEP_ALIVE_SECONDS, ttl_dns_cache=60
            ),
            # The whole try has one deadline, set by the caller; only connecting has its own.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.upstream_connect_timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            skip_auto_headers=("User-Agent",),
            read_bufsize=1 << 20,
        )
        self._max_answer_bytes = settings.max_answer_bytes
        self._urls: dict[tuple[str, str], URL] = {}

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def post(self, model: Model, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and give the response once its headers are there.

        Raises:
            UpstreamUnreachable: no connection, or it broke, inside the block too.
            UpstreamSilent: no connection in time.
        """
        try:
            url = self._url(model.endpoint, path)
        except ValueError as error:
            raise UpstreamUnreachable(f"{model.endpoint} is not an address: {error}") from error
        try:
            async with self._session.post(url, data=body, allow_redirects=False) as reply:
                yield reply
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamSilent(f"{model.endpoint}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamUnreachable(f"{model.endpoint}: {type(error).__name__}: {error}") from error

    async def read(self, reply: aiohttp.ClientResponse) -> bytes:
        """The whole body of an answer.

        Raises:
            ValueError: it is larger than `max_answer_bytes`.
        """
        if (reply.content_length or 0) <= self._max_answer_bytes and reply.content_length is not None:
            return await reply.read()
        parts, size = [], 0
        async for part in reply.content.iter_any():
            size += len(part)
            if size > self._max_answer_bytes:
                raise ValueError(f"the answer is larger than {self._max_answer_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def _url(self, endpoint: str, path: str) -> URL:
        key = (endpoint, path)
        if key not in self._urls:
            if len(self._urls) > 4096:
                self._urls.clear()
            self._urls[key] = URL(f"{endpoint.rstrip('/')}/{path}")
        return self._urls[key]


def parsed(raw: bytes, content_type: str) -> tuple[JSON, str]:
    """An answer's body as an object, and what is wrong with it ("" if nothing)."""
    if content_type and content_type != "application/json" and not content_type.endswith("+json"):
        return quoted(raw, f"content type {content_type}, not JSON")
    try:
        value = strict_json.loads(raw)
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
