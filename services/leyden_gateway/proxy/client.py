"""The client's side of one call: its request, whether it is still there, and what is sent to it.

Invariants:
- a response starts once; after that an error is an event of the stream, never a second response;
- a stream on which nothing was sent for a while gets a comment or a ping, so that nobody on the way gives it up;
- when the client goes away, work that was given patience is cut short, and everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType

from starlette.types import Message, Receive, Scope, Send

from leyden_gateway.protocols import sse

Headers = list[tuple[bytes, bytes]]

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class BodyTooLarge(ValueError):
    """The request body is larger than the gateway takes."""

    def __init__(self, limit_bytes: int, announced_bytes: int | None = None) -> None:
        size = f"of {announced_bytes} bytes" if announced_bytes is not None else "sent"
        super().__init__(f"the request body {size} is larger than the {limit_bytes} bytes allowed")


class ClientGone(ConnectionError):
    """The client has closed its connection, and the work's grace is over."""


class Patience:
    """The block that `Client.patience` gives; a class of its own since a generator would cost twice as much."""

    __slots__ = ("_client", "_deadline", "_grace_seconds")

    def __init__(self, client: Client, timeout_seconds: float, grace_seconds: float) -> None:
        self._client = client
        self._deadline = asyncio.timeout(timeout_seconds)
        self._grace_seconds = grace_seconds

    async def __aenter__(self) -> None:
        await self._deadline.__aenter__()
        self._client.patient[self._deadline] = self._grace_seconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._client.patient[self._deadline]
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._client.gone and self._deadline.expired():
                raise ClientGone("the client went away") from None
            raise


class Client:
    """One HTTP exchange with an agent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.gone = False
        self.started = False
        self.streaming = False
        self._ending = False
        self.on_gone: Callable[[], None] | None = None
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None
        self.patient: dict[asyncio.Timeout, float] = {}
        """The deadlines of work under way, and what grace each has."""
        self._keep_alive: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._silence_seconds = 0.0
        self._silence_breaker = sse.KEEP_ALIVE

    async def body(self, limit_bytes: int) -> bytes:
        """The whole request body; from here on the client's going away is noticed.

        Raises:
            BodyTooLarge: it is larger than `limit_bytes`.
            ClientGone: the client went away before it was complete.
        """
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit_bytes:
            raise BodyTooLarge(limit_bytes, int(announced))
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientGone("the client went away while it was sending its request")
            part = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            parts.append(part)
            if not message.get("more_body"):
                break
        self._watcher = asyncio.create_task(self._watch())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def leave(self) -> None:
        """Let go of the exchange; to be called once, when the call is over.

        It lets go of its tasks and of the call, too: as a ring they would stay until the garbage collector comes.
        """
        for task in (self._watcher, self._comment):
            if task is not None:
                task.cancel()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self._watcher = self._comment = self._keep_alive = self.on_gone = None

    def patience(self, timeout_seconds: float, grace_seconds: float) -> Patience:
        """A deadline for a block of work, drawn closer to `grace_seconds` from when the client goes away.

        Raises, where the block ends:
            ClientGone: the client has gone and the grace is over.
            TimeoutError: the work took longer than `timeout_seconds`.
        """
        return Patience(self, min(timeout_seconds, grace_seconds) if self.gone else timeout_seconds, grace_seconds)

    async def respond(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send a whole JSON response."""
        self.started = self._ending = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", b"%d" % len(body)),
                    *(headers or []),
                ],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    def keep_alive(self, silence_seconds: float, data: bytes = sse.KEEP_ALIVE) -> None:
        """Treat the response as a stream and break every silence of that length by `data`, which says nothing."""
        self._silence_seconds, self._silence_breaker = silence_seconds, data
        self._await_silence()

    def _await_silence(self) -> None:
        self._keep_alive = asyncio.get_running_loop().call_later(self._silence_seconds, self._break_silence)

    async def stream(self, data: bytes, *, last: bool = False) -> None:
        """Send a part of a stream; the first one sends the headers too."""
        self._ending = last
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            self._keep_alive = None
        if self._comment is not None:
            await self._comment
            self._comment = None
        await self._send_part(data, more=not last)
        if self._silence_seconds and not last:
            self._await_silence()

    async def _send_part(self, data: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = self.streaming = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def _break_silence(self) -> None:
        if not self.gone:
            self._comment = asyncio.create_task(self._send_part(self._silence_breaker, more=True))
            self._await_silence()

    async def _watch(self) -> None:
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        if self._ending:  # the server says so too when a response is complete
            return
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()
        now = asyncio.get_running_loop().time()
        for deadline, grace_seconds in self.patient.items():
            limit = now + grace_seconds
            when = deadline.when()
            if when is None or when > limit:
                deadline.reschedule(limit)
