"""A way to Redis on which one script's request, or the answer to it, can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal, Self

from leyden.log.scripts import script

What = Literal["request", "answer"]


@dataclass
class Stop:
    """Where traffic stops, once: what comes is kept until it is let go or dropped."""

    name: str
    """The script."""
    what: What
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: bool = False

    def let_go(self) -> None:
        """Let pass what was kept."""
        self.over.set()

    def drop(self) -> None:
        """Let it be as if what was kept had never been sent."""
        self.dropped = True
        self.over.set()


class WayToRedis:
    """Forwards to a server on this machine, and stops where it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self.stop: Stop | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        if self.stop is not None:
            self.stop.drop()
        self._server.close()

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def stop_at(self, name: str, what: What) -> Stop:
        """Stop the next request of this script, or the answer to it."""
        self.stop = Stop(name, what)
        return self.stop

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            client_out.transport.abort()
            return
        line = _Line()
        there = asyncio.create_task(self._there(client_in, server_out, line))
        back = asyncio.create_task(self._back(server_in, client_out, line))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        for writer in (server_out, client_out):
            writer.transport.abort()

    async def _there(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, line: _Line) -> None:
        async for chunk in _chunks(source):
            stop = self.stop
            if stop is not None and not stop.reached.is_set() and script(stop.name).sha.encode() in chunk:
                if stop.what == "answer":
                    line.stop = stop
                elif await _kept(stop):
                    return
            target.write(chunk)

    async def _back(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, line: _Line) -> None:
        async for chunk in _chunks(source):
            if line.stop is not None:
                stop, line.stop = line.stop, None
                if await _kept(stop):
                    return
            target.write(chunk)


@dataclass
class _Line:
    """One connection; its next answer is to be stopped if it has a stop."""

    stop: Stop | None = None


async def _kept(stop: Stop) -> bool:
    """Wait until what was stopped may go; whether it is dropped."""
    stop.reached.set()
    await stop.over.wait()
    return stop.dropped


async def _chunks(source: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while chunk := await source.read(1 << 20):
            yield chunk
    except OSError:
        return
