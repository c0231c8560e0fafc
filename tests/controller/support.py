"""Controllers and agents as real processes, and how tests wait for them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from leyden.log import Completion, RunLog
from leyden.schemas import LocalConfig, NewRollout, RolloutConfig

KEY = "a-key-for-tests"
MARK = "CONTROLLER_TEST_MARK"
SECONDS = 40
"""How long anything may take before a test gives up."""


class ControllerProcess:
    """One `python -m leyden_controller`."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        self.process = process
        self.output = output

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """Everything it has started that lives: its supervisor, keepers, agents and what those have started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    async def exited(self) -> int:
        return await asyncio.wait_for(self.process.wait(), SECONDS)

    async def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        await self.exited()


StartController = Callable[..., Awaitable[ControllerProcess]]


def agents(mark: Path, name: str | None = None) -> list[psutil.Process]:
    """The processes that live and came from agents of this test's controllers, or those of them of a program's name."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == str(mark) and process.cmdline()[1:3] != ["-m", "leyden_controller"]
            if ours and name in (None, process.name()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


async def until(holds: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Wait until `holds`; `what` names it if it does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


async def outcomes(run: RunLog, count: int, seconds: float = SECONDS) -> dict[str, Completion]:
    """The outcomes of `count` rollouts, by id, once there are as many; each rollout has one."""
    async with asyncio.timeout(seconds):
        while True:
            found, _ = await run.completions.page(0, count + 1)
            if len(found) >= count:
                assert len({each.rollout_id for each in found}) == len(found) == count
                return {each.rollout_id: each for each in found}
            await run.completions.wait(len(found), 1)


async def started(run: RunLog, rollout_id: str) -> list[str]:
    """The attempts that were started, in order."""
    return [each.attempt or "" for each in await run.events.entries(rollout_id) if each.kind == "started"]


async def causes(run: RunLog, rollout_id: str) -> list[str]:
    """The causes on record of attempts that did not succeed, in order."""
    entries = await run.events.entries(rollout_id)
    return [each.data["cause"] for each in entries if each.event_type == "attempt_ended" and each.data]


def asked(
    rollout_id: str,
    command: str | Sequence[str] | None = None,
    *,
    input: Any = None,
    is_train: bool = True,
    **config: Any,
) -> NewRollout:
    """A rollout of a command line, or of what else `config` says: fields of `config.local` and of `config` alike."""
    local = {name: config.pop(name) for name in ("agent_class", "cwd", "env_map") if name in config}
    if command is not None:
        local["command"] = command
    return NewRollout(
        rollout_id=rollout_id,
        input=input,
        is_train=is_train,
        config=RolloutConfig.model_validate({**config, "local": LocalConfig.model_validate(local)}),
    )


def shell(script: str) -> list[str]:
    """A command line that runs a shell script."""
    return ["sh", "-c", script]
