"""How long a queued rollout waits for its agent's process: one at a time, and in bursts of as many as there are slots.

    python -m bench.queue_to_start

The time runs from before the rollout is sent to Redis until the agent's own first act, a `date` behind a shell, so it
holds both round trips, the controller, the fork and two execs; both ends read the same machine's clock.

Invariant: every rollout queued here has succeeded and started exactly once, else there is no result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.machine import Machine
from bench.processes import memory_mb, running
from bench.report import report
from leyden.log import Log, RunLog, RunSettings
from leyden.redis_server import RedisServer, find_server
from leyden.schemas import DEFAULT_RUN, LocalConfig, NewRollout, RolloutConfig, State

_AGENT = ["/bin/sh", "-c", 'exec date "+$NAME %s%N" >> "$STARTS"']
_DEADLINE_SECONDS = 60.0
_REPOSITORY = Path(__file__).parent.parent


class StartsDiffer(RuntimeError):
    """A rollout did not succeed in time, or its agent started more or less than once."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long agents waited, in ms."""

    pattern: str
    rollouts: int
    median_ms: float
    p99_ms: float
    longest_ms: float

    @classmethod
    def of(cls, pattern: str, waits_ms: Sequence[float]) -> Waits:
        ordered = sorted(waits_ms)
        p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
        return cls(pattern, len(ordered), statistics.median(ordered), p99, ordered[-1])


class Queueing:
    """Queues rollouts in a run and finds when their agents started."""

    def __init__(self, run: RunLog, starts: Path) -> None:
        self._run = run
        self._starts = starts
        self._queued_at: dict[str, int] = {}
        self._ended = 0

    async def queue(self, names: Sequence[str]) -> None:
        """Queue rollouts of these names at once."""
        config = RolloutConfig(
            local=LocalConfig(command=_AGENT, env_map={"NAME": "input.name", "STARTS": str(self._starts)}),
            timeout_seconds=60,
        )
        rollouts = [NewRollout(rollout_id=name, input={"name": name}, config=config) for name in names]
        self._queued_at |= dict.fromkeys(names, time.time_ns())
        await self._run.rollouts.create_many(rollouts)

    async def wait_until_all_ended(self) -> None:
        """Return when all that was queued has ended.

        Raises:
            StartsDiffer: that takes too long, or one has failed.
        """
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while self._ended < len(self._queued_at):
                await self._run.completions.wait(self._ended, _DEADLINE_SECONDS)
                new, self._ended = await self._run.completions.page(self._ended, 1000)
                if failed := [each.rollout_id for each in new if each.state is not State.SUCCEEDED]:
                    raise StartsDiffer(f"{len(failed)} rollouts failed, {failed[0]} among them")

    def waits_ms(self, names: Sequence[str]) -> list[float]:
        """How long the agents of these names waited.

        Raises:
            StartsDiffer: one started more or less than once.
        """
        started: dict[str, list[int]] = {name: [] for name in names}
        for line in self._starts.read_text().splitlines():
            name, at = line.split()
            if name in started:
                started[name].append(int(at))
        for name, times in started.items():
            if len(times) != 1:
                raise StartsDiffer(f"the agent of {name} started {len(times)} times")
        return [(times[0] - self._queued_at[name]) / 1e6 for name, times in started.items()]


async def one_at_a_time(queueing: Queueing, count: int, progress: Progress) -> Waits:
    """Rollouts that come singly, 20 to 60 ms after the last has ended."""
    pause = random.Random(0)
    names = [f"single-{number}" for number in range(count)]
    for name in progress.track(names, description="one at a time"):
        await queueing.queue([name])
        await queueing.wait_until_all_ended()
        await asyncio.sleep(pause.uniform(0.02, 0.06))
    return Waits.of("one at a time", queueing.waits_ms(names))


async def in_bursts(queueing: Queueing, count: int, size: int, progress: Progress) -> Waits:
    """Rollouts that come `size` at once, as many as there are slots."""
    bursts = [[f"burst-{burst}-{number}" for number in range(size)] for burst in range(count // size)]
    for names in progress.track(bursts, description=f"bursts of {size}"):
        await queueing.queue(names)
        await queueing.wait_until_all_ended()
        await asyncio.sleep(0.1)
    return Waits.of(f"bursts of {size}", queueing.waits_ms([name for names in bursts for name in names]))


async def measure(count: int, slots: int, burst_sizes: Sequence[int]) -> tuple[list[Waits], dict[str, float]]:
    """The waits in each pattern, and the controller's and its supervisor's memory in MB.

    Raises:
        StartsDiffer, NotStarted
    """
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as name, RedisServer(Path(name) / "redis") as server:
        folder = Path(name)
        log = Log.connect(server.url)
        await log.runs.begin(DEFAULT_RUN, RunSettings())
        env = {"LEYDEN_REDIS_URL": server.url, "LEYDEN_SLOTS": str(slots), "LEYDEN_KEY": "a-key-for-measuring"}
        with running(
            "controller", [sys.executable, "-m", "leyden_controller"], folder, env=env, cwd=_REPOSITORY
        ) as controller:
            queueing = Queueing(log.run(DEFAULT_RUN), folder / "starts")
            await queueing.queue(["warm-up"])
            await queueing.wait_until_all_ended()
            with Progress(console=Console(stderr=True), transient=True) as progress:
                waits = [await one_at_a_time(queueing, count, progress)]
                waits += [await in_bursts(queueing, count, size, progress) for size in burst_sizes]
            memory = {
                "controller, resident": controller.memory_info().rss / 1e6,
                "with its children, shared pages once": memory_mb(controller),
            }
        await log.close()
    return waits, memory


def main() -> None:
    options = argparse.ArgumentParser(
        prog="python -m bench.queue_to_start", description=(__doc__ or "").splitlines()[0]
    )
    options.add_argument("--rollouts", type=int, default=200, help="in each pattern")
    options.add_argument("--slots", type=int, default=16)
    options.add_argument("--bursts", nargs="+", type=int, default=[4, 16])
    options.add_argument("--out", type=Path, default=Path("build/bench/queue_to_start.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    waits, memory = asyncio.run(measure(given.rollouts, given.slots, given.bursts))
    table = Table(title="queued → agent's process")
    for column in ("pattern", "rollouts", "median ms", "p99 ms", "longest ms"):
        table.add_column(column, justify="left" if column == "pattern" else "right")
    for each in waits:
        shown = (f"{value:.1f}" for value in (each.median_ms, each.p99_ms, each.longest_ms))
        table.add_row(each.pattern, str(each.rollouts), *shown)
    report(
        given.out,
        machine,
        {"waits": [asdict(each) for each in waits], "memory_mb": memory},
        table,
        ", ".join(f"{role} {mb:.0f} MB" for role, mb in memory.items()),
        f"load at the end {os.getloadavg()[0]:.2f}",
    )


if __name__ == "__main__":
    main()
