"""Fixtures that start controllers and runners, and see to it that no process of theirs is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leyden_controller.local.runner import LocalRunner
from tests.controller.support import KEY, MARK, ControllerProcess, StartController, agents, until


@pytest.fixture
async def start_controller(redis_url: str, tmp_path: Path) -> AsyncIterator[StartController]:
    """Starts controllers: `await start_controller(slots=2)`; any setting may be given."""
    begun: list[ControllerProcess] = []

    async def start(**settings: object) -> ControllerProcess:
        given = {"redis_url": redis_url, "lease_seconds": 15, "key": KEY, "shutdown_grace_seconds": 1} | settings
        environment = {f"LEYDEN_{name.upper()}": str(value) for name, value in given.items()}
        output = tmp_path / f"controller-{len(begun)}.log"
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "leyden_controller"),
                env={**os.environ, MARK: str(tmp_path), **environment},
                stdout=file,
                stderr=file,
                cwd=tmp_path,
            )
        begun.append(ControllerProcess(process, output))
        return begun[-1]

    yield start
    for controller in begun:
        if controller.process.returncode is None:
            controller.signal(signal.SIGKILL)
            await controller.process.wait()
    await until(lambda: not agents(tmp_path), "every agent has ended after its controller")


@pytest.fixture
async def runner() -> AsyncIterator[LocalRunner]:
    """A local runner of this process's own."""
    runner = LocalRunner()
    await runner.open()
    yield runner
    await runner.close()
