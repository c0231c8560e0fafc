"""One connection to Redis that everything in a process shares for its writes.

redis-py gives a connection to one caller at a time and spends more on a round trip than the server does; this gives one
to all. redis-py still makes it: address, TLS and credentials are its.

Invariants:
- commands given within one turn of the event loop leave in one write, and none waits for another's reply;
- each caller gets the reply to its own command, or an error: when the connection breaks, or is silent for too long
  with replies due, everything under way fails, and the next command makes a new connection;
- nothing is sent twice here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import hiredis
from redis._parsers.base import BaseParser
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, InvalidResponse, RedisError, TimeoutError

Command = tuple[str | bytes | int | float, ...]


class Pipe:
    """Asks one server, over one connection at a time, made when first needed."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._line: _Line | None = None
        self._dialling: asyncio.Task[_Line] | None = None

    async def ask(self, *command: str | bytes | int | float) -> Any:
        """The reply to a command; bytes stay bytes. A caller that is cancelled does not take its command back.

        Raises:
            ConnectionError, TimeoutError: it can't be known whether the command ran.
            RedisError: the server's own.
        """
        line = self._line
        if line is None or line.broken:
            line = await self._dialled()
        return await line.ask(command)

    async def close(self) -> None:
        """Let go of the connection; whatever is under way fails."""
        if self._dialling is not None:
            self._dialling.cancel()
        if self._line is not None:
            await self._line.close()
            self._line = None

    async def _dialled(self) -> _Line:
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._dial())
            self._dialling.add_done_callback(self._rang)
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> _Line:
        connection = self._pool.make_connection()
        try:
            await connection.connect()
        except OSError as error:
            raise ConnectionError(str(error)) from error
        self._line = _Line(connection)
        return self._line

    def _rang(self, dialling: asyncio.Task[_Line]) -> None:
        self._dialling = None
        if not dialling.cancelled():
            dialling.exception()  # every caller that waited has it; if none did, it is no news


class _Line(asyncio.Protocol):
    """A connection that redis-py has made and logged in, from then on read and written here."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # kept: its stream closes the transport when it is collected
        self._transport = cast(asyncio.Transport, connection._writer.transport)
        self._silence_seconds: float | None = connection.socket_timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
        self._due: deque[tuple[asyncio.Future[Any], float]] = deque()
        """Replies not there yet, and when they were asked for."""
        self._out: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None
        self.broken = False
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self.broken = True

    def ask(self, command: Command) -> asyncio.Future[Any]:
        """The future reply to a command."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self.broken:
            reply.set_exception(ConnectionError("the connection to Redis is closed"))
            return reply
        packed = hiredis.pack_command(cast(Any, command))  # its stub takes one-tuples only
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)
        self._due.append((reply, self._loop.time()))
        if self._watch is None and self._silence_seconds is not None:
            self._watch = self._loop.call_later(self._silence_seconds, self._look)
        return reply

    async def close(self) -> None:
        self._fail(ConnectionError("the connection to Redis was closed"))
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._settle(reply)
        except (RedisError, IndexError) as error:
            self._fail(ConnectionError(f"Redis sent what is no reply: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"the connection to Redis broke: {exc or 'closed by the server'}"))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self.broken:
            self._transport.write(b"".join(out))

    def _settle(self, reply: Any) -> None:
        if isinstance(reply, hiredis.PushNotification):
            return
        waiting, _ = self._due.popleft()
        if waiting.done():
            return
        if isinstance(reply, Exception):
            waiting.set_exception(reply)
        else:
            waiting.set_result(reply)

    def _look(self) -> None:
        """Give the server up if the oldest reply has been due for too long."""
        self._watch = None
        if not self._due or self._silence_seconds is None:
            return
        left = self._due[0][1] + self._silence_seconds - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self._fail(TimeoutError(f"Redis did not answer within {self._silence_seconds:g} s"))

    def _fail(self, error: RedisError) -> None:
        self.broken = True
        if self._watch is not None:
            self._watch.cancel()
        self._transport.abort()
        while self._due:
            waiting, _ = self._due.popleft()
            if not waiting.done():
                waiting.set_exception(error)
