"""A way to Redis on which connections break, most often after a request went through and before its answer came."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self


class FlakyProxy:
    """Forwards to a server; cuts a connection with the given chance at every chunk of an answer while `cutting`."""

    def __init__(self, port: int, *, chance: float = 0.2, seed: int = 0) -> None:
        self._port = port
        self._chance = chance
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self.cutting = True
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_connection("127.0.0.1", self._port)
        there = asyncio.create_task(self._pass(client_in, server_out, may_cut=False))
        back = asyncio.create_task(self._pass(server_in, client_out, may_cut=True))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        for writer in (server_out, client_out):
            writer.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, may_cut: bool) -> None:
        try:
            while chunk := await source.read(65536):
                if may_cut and self.cutting and self._random.random() < self._chance:
                    self.cuts += 1
                    # Half of an answer may get through.
                    target.write(chunk[: len(chunk) // 2])
                    return
                target.write(chunk)
                await target.drain()
        except OSError:
            return
