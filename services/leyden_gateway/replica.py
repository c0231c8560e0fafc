"""This process as a replica: its name, and the heartbeat without which its open calls no longer count as in flight."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid

import structlog

from leyden.log import Log
from leyden.log.errors import LogFull, LogUnavailable
from leyden.log.replicas import BEAT_SECONDS

_log = structlog.get_logger("leyden.gateway.replica")


class Replica:
    """Beats for every run in which this process has calls open."""

    def __init__(self, log: Log) -> None:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        self.name = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._log = log
        self._open: dict[str, int] = {}

    def opened(self, run: str) -> None:
        """Note an open call; opening it in the log was a beat already."""
        self._open[run] = self._open.get(run, 0) + 1

    def closed(self, run: str) -> None:
        """Note that a call is no longer open."""
        left = self._open[run] - 1
        if left:
            self._open[run] = left
        else:
            del self._open[run]

    @property
    def inflight(self) -> int:
        """How many calls this process has open."""
        return sum(self._open.values())

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for run in list(self._open):
                try:
                    await self._log.run(run).replicas.beat(self.name)
                except (LogUnavailable, LogFull) as error:
                    _log.warning("heartbeat not written", run=run, error=str(error))
