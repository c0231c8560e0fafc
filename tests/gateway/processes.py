"""Gateways as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Self

import httpx

from leyden.processes import free_port
from tests.gateway.conftest import ADMIN, KEY
from tests.gateway.stub import MODEL

_START_SECONDS = 60


class GatewayProcess:
    """`python -m leyden_gateway` on a port of its own; its output goes to a file."""

    def __init__(self, redis_url: str, folder: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = folder / f"gateway-{self.port}.log"
        self._environment = os.environ | {
            "LEYDEN_REDIS_URL": redis_url,
            "LEYDEN_KEY": KEY,
            "LEYDEN_MODEL": MODEL,
            "LEYDEN_PORT": str(self.port),
            **{f"LEYDEN_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Self:
        with self.output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "leyden_gateway", env=self._environment, stdout=output, stderr=output
            )
        async with httpx.AsyncClient(base_url=self.url, headers=ADMIN) as client:
            for _ in range(_START_SECONDS * 20):
                try:
                    if (await client.get("/healthz")).status_code == 200:
                        return self
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        raise AssertionError(f"the gateway did not start: {self.output.read_text()[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await asyncio.wait_for(self._process.wait(), 30)

    async def kill(self) -> None:
        await self.end(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)
