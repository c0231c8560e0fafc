"""The controller's end of a keeper's connection: length-prefixed JSON, as `supervisor` speaks it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")


class KeeperConnection:
    """One order out, a few answers in; closing it ends the agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> KeeperConnection:
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._writer.write(_LENGTH.pack(len(body)) + body)
        await self._writer.drain()

    async def receive(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            EOFError: the keeper is gone without one.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return json.loads(await self._reader.readexactly(length))
        except ConnectionError as error:
            raise EOFError("the keeper's connection broke") from error

    def end(self) -> None:
        """Tell the keeper to stop; its last answer can still be received. May be repeated."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
