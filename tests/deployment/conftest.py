"""A deployment of real processes: Redis, gateways, controllers and agents, around a scriptable model server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.gateway.stub import StubModel

AGENT = Path(__file__).with_name("agent.py")
CALLS = 3
"""How often an agent asks."""
SECONDS = 60
"""How long anything may take before a test gives up."""


class Up:
    """One `leyden up` as a process, over a folder of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it says that it is up."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LEYDEN_", "AGL_"))}
        environment |= {"LEYDEN_LEASE_SECONDS": "3", "LEYDEN_SHUTDOWN_GRACE_SECONDS": "5"}
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leyden.cli.main", "up"),
            *("--data-dir", str(self.folder), "--port", str(self._port), "--slots", "8", "--model", "stub-model"),
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            while b"Leyden is up" not in await self.process.stdout.readline():
                assert self.process.returncode is None, "leyden up ended"

    def service(self, name: str) -> psutil.Process:
        """The newest process of a service: redis, leyden_gateway or leyden_controller."""
        assert self.process is not None
        found = [
            child
            for child in psutil.Process(self.process.pid).children()
            if any(name in word or ("valkey" in word and name == "redis") for word in child.cmdline()[:3])
        ]
        return max(found, key=lambda child: child.create_time())

    def descendants(self) -> list[psutil.Process]:
        """Everything that it has started and that lives."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal and wait for the end."""
        assert self.process is not None
        self.process.send_signal(number)
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@pytest.fixture
async def up(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[Up]:
    """A deployment that is up."""
    deployment = Up(tmp_path / "leyden", unused_tcp_port)
    await deployment.start()
    yield deployment
    if deployment.process is not None and deployment.process.returncode is None:
        await deployment.stop()


@pytest.fixture
async def model() -> AsyncIterator[StubModel]:
    """A model server that is not registered yet."""
    async with StubModel() as stub:
        yield stub
