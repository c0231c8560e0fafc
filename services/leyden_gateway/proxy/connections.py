"""HTTP/1.1 to model servers: as much of it as a model call needs, a POST over a connection that is kept.

A general client takes more of a call's CPU than all of the log; `docs/performance.md` has the numbers.

Invariants:
- a connection carries one request at a time, and is kept for a further one only if the answer is complete, the server
  leaves it open, and nothing is left to send;
- a request is sent once: one that fails is not sent again here;
- an answer is complete when the end that it announced has come, or, if it announced none, when the server closes;
- who does not read holds the server up rather than fill the memory;
- an answer that is let go before it is complete costs its connection, which is how its server learns of it.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import httptools
import httpx

from leyden.concealing import without_credentials

_MAX_HEAD_BYTES = 64 << 10
_PAUSE_ABOVE_BYTES = 1 << 20
"""How much of an answer may wait to be read before its server is held up."""


class UpstreamFailed(ConnectionError):
    """The server gave no answer; `status` is what the agent is told if no other try succeeds."""

    status = 502


class UpstreamUnreachable(UpstreamFailed):
    """The connection could not be made, or broke."""


class UpstreamSilent(UpstreamFailed):
    """The answer did not come in time."""

    status = 504


class Origin(NamedTuple):
    """Where a connection leads."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go: the endpoint as errors name it, and the requests' head up to the value of `content-length`."""

    endpoint: str
    origin: Origin
    head: bytes

    @classmethod
    def of(cls, endpoint: str, path: str) -> Address:
        """The address of a path below an endpoint, whose user and password are sent as basic credentials.

        Raises:
            ValueError: it is none.
        """
        try:
            url = httpx.URL(f"{endpoint.rstrip('/')}/{path}")
        except httpx.InvalidURL as error:
            raise ValueError(str(error)) from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("it wants http://HOST:PORT/v1")
        tls = url.scheme == "https"
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (url.raw_path, url.netloc)
        if url.userinfo:
            head += b"authorization: Basic %b\r\n" % b64encode(f"{url.username}:{url.password}".encode())
        head += b"accept: */*\r\naccept-encoding: identity\r\ncontent-type: application/json\r\ncontent-length: "
        return cls(
            without_credentials(endpoint),
            Origin(url.raw_host.decode().strip("[]"), url.port or (443 if tls else 80), tls),
            head,
        )


class Connection(asyncio.Protocol):
    """A connection to a model server, and the answer that it is giving."""

    def __init__(self, address: Address) -> None:
        self.address = address
        """Where the request went; the next one may go elsewhere at the same origin."""
        self.idle_since = 0.0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._asked = False
        self._expect()

    def _expect(self) -> None:
        self.status = 0
        """The answer's status; 0 until its head is there."""
        self.content_type = ""
        """In lower case and without its parameters."""
        self.encoding = ""
        """How the body is encoded, which nobody asked for."""
        self.content_length: int | None = None
        self.complete = False
        """Whether all of the answer has arrived."""
        self._ends_by_closing = True
        self._keeps = False
        self._fault = ""
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._unread = 0

    async def ask(self, address: Address, body: bytes) -> None:
        """Send a request and return when the head of its answer is there.

        Raises:
            UpstreamUnreachable: the connection broke.
        """
        self._expect()
        self.address = address
        self._asked = True
        if self._transport is not None and not self.closed:
            self._transport.write(b"%b%d\r\n\r\n%b" % (address.head, len(body), body))
        while not self.status:
            await self._more()

    async def some(self) -> bytes:
        """What of the body has come since; empty at its end.

        Raises:
            UpstreamUnreachable: the connection broke before the end.
        """
        while not self._parts:
            if self.complete:
                return b""
            await self._more()
        parts, self._parts, self._unread = self._parts, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            ValueError: it is larger than `limit_bytes`.
            UpstreamUnreachable: the connection broke before the end.
        """
        parts, size = [], self.content_length or 0
        if size <= limit_bytes:
            size = 0
            while part := await self.some():
                size += len(part)
                if size > limit_bytes:
                    break
                parts.append(part)
        if size > limit_bytes:
            raise ValueError(f"the answer is larger than {limit_bytes} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def rest(self) -> bool:
        """Whether the connection can serve a further request; from here on the server has nothing to say."""
        self._asked = False
        return (
            self.complete
            and self._keeps
            and not self.closed
            and not self._paused
            and self._transport is not None
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _more(self) -> None:
        """Wait until something has happened."""
        if self._fault or self.closed:
            raise UpstreamUnreachable(f"{self.address.endpoint}: {self._fault or 'the connection is closed'}")
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"what came is no HTTP answer: {error.__context__ or error}")
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._break(f"the head of the answer has more than {_MAX_HEAD_BYTES} bytes")
        if self._unread > _PAUSE_ABOVE_BYTES and not self._paused and not self.closed and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.status and self._ends_by_closing and not self.closed:
            self.complete = True
        elif not self._fault:
            self._fault = str(exc or "the server closed the connection before its answer was complete")
        self.closed = True
        self._transport = None
        del self._parser  # it holds this object, and together they would wait for the garbage collector
        self._wake()

    def _break(self, fault: str) -> None:
        if self.complete:  # only what follows the answer is wrong
            self._keeps = False
        else:
            self._fault = fault
            self.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("an answer to no request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        name = name.lower()
        if name == b"content-type":
            self.content_type = value.decode("latin-1").partition(";")[0].strip().lower()
        elif name == b"content-length":
            self.content_length = int(value)
            self._ends_by_closing = False
        elif name == b"transfer-encoding":
            self._ends_by_closing = False
        elif name == b"content-encoding":
            self.encoding = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._unread += len(part)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self._keeps = self._parser.should_keep_alive()
        else:  # it was only a 1xx
            self._expect()


class Connections:
    """All connections of this process to model servers."""

    def __init__(
        self,
        *,
        limit: int,
        connect_timeout_seconds: float,
        idle_seconds: float,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """At most `limit` requests are under way at once, others wait; `tls` makes the context for `https:`."""
        self._slots = asyncio.Semaphore(limit)
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle_seconds = idle_seconds
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[Origin, list[Connection]] = {}
        """Newest last, so that the oldest get old enough to be closed."""
        self._sweep: asyncio.TimerHandle | None = None

    async def post(self, address: Address, body: bytes) -> Connection:
        """Send a request; gives its connection once the head of the answer is there, to be released later.

        Raises:
            UpstreamUnreachable: no connection, or it broke.
            UpstreamSilent: no connection in time.
        """
        await self._slots.acquire()
        connection = None
        try:
            connection = self._kept(address.origin) or await self._dial(address)
            await connection.ask(address, body)
        except BaseException:
            if connection is not None:
                connection.close()
            self._slots.release()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Keep a connection that can be used again, close any other; to be called once after `post`."""
        self._slots.release()
        if not connection.rest():
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.setdefault(connection.address.origin, []).append(connection)
        if self._sweep is None:
            self._sweep_later()

    def close(self) -> None:
        """Close what is idle."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _kept(self, origin: Origin) -> Connection | None:
        kept = self._idle.get(origin)
        if not kept:
            return None
        fresh_after = asyncio.get_running_loop().time() - self._idle_seconds
        while kept:
            connection = kept.pop()
            if not connection.closed and connection.idle_since > fresh_after:
                return connection
            connection.close()
        return None

    async def _dial(self, address: Address) -> Connection:
        origin, loop = address.origin, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(address), origin.host, origin.port, ssl=self._context() if origin.tls else None
                )
        except TimeoutError as error:
            raise UpstreamSilent(f"{address.endpoint}: no connection in {self._connect_timeout_seconds:g} s") from error
        except (OSError, UnicodeError) as error:
            raise UpstreamUnreachable(f"{address.endpoint}: {type(error).__name__}: {error}") from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._make_tls()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        old = asyncio.get_running_loop().time() - self._idle_seconds
        for origin, connections in list(self._idle.items()):
            fresh = [each for each in connections if not each.closed and each.idle_since > old]
            for connection in set(connections) - set(fresh):
                connection.close()
            if fresh:
                self._idle[origin] = fresh
            else:
                del self._idle[origin]
        if self._idle:
            self._sweep_later()
