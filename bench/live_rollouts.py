"""Whether many live rollouts make a call dearer: calls spread over 10 of them, and over 10,000.

    python -m bench.live_rollouts

Each number of rollouts has a gateway and a Redis of its own; they take turns, and CPU time a call is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import answers
from bench.answers import Sizes
from bench.load import put_load
from bench.machine import Machine
from bench.processes import cpu_seconds, memory_mb
from bench.report import report
from bench.systems import Leyden, Setting, System, stub_server
from leyden.redis_server import find_server


@dataclass(frozen=True, slots=True)
class Cost:
    """One turn: CPU in µs a call and memory in MB afterwards, each by the process's role."""

    rollouts: int
    calls_per_second: float
    cpu_us: dict[str, float]
    memory_mb: dict[str, float]


async def compare(counts: Sequence[int], *, rounds: int, seconds: int, concurrency: int, sizes: Sizes) -> list[Cost]:
    """Turns with each number of live rollouts.

    Raises:
        NotStarted, LoadFailed
    """
    body = answers.dumps(answers.request(sizes))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leyden-bench-")))
        url, stub = await stack.enter_async_context(stub_server(sizes, folder, 64))
        systems: dict[int, System] = {}
        for count in counts:
            own = folder / str(count)
            own.mkdir()
            setting = Setting(url, stub, own, [f"live-{number:05d}" for number in range(count)])
            systems[count] = await stack.enter_async_context(Leyden()(setting))
        found = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for number in progress.track(range(rounds + 1), description="rounds, the first to warm up"):
                for count, system in systems.items():
                    cost = await _turn(count, system, body, folder, concurrency, seconds)
                    found += [cost] if number else []
    return found


async def _turn(count: int, system: System, body: bytes, folder: Path, concurrency: int, seconds: int) -> Cost:
    before = {role: cpu_seconds(process) for role, process in system.processes.items()}
    load = await asyncio.to_thread(
        put_load, system.base_url, system.targets, body, folder, connections=concurrency, seconds=seconds
    )
    return Cost(
        count,
        load.calls_per_second,
        {role: (cpu_seconds(each) - before[role]) / load.calls * 1e6 for role, each in system.processes.items()},
        {role: memory_mb(each) for role, each in system.processes.items()},
    )


def main() -> None:
    options = argparse.ArgumentParser("python -m bench.live_rollouts", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rollouts", nargs="+", type=int, default=[10, 10_000])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=int, default=8, help="of each turn")
    options.add_argument("--concurrency", type=int, default=16)
    options.add_argument("--out", type=Path, default=Path("build/bench/live_rollouts.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    found = asyncio.run(
        compare(
            given.rollouts, rounds=given.rounds, seconds=given.seconds, concurrency=given.concurrency, sizes=Sizes()
        )
    )
    report(given.out, machine, {"costs": [asdict(each) for each in found]}, _table(found))


def _table(found: Sequence[Cost]) -> Table:
    table = Table(title="a call's cost by the number of live rollouts; medians, and ranges over the rounds")
    for column in ("rollouts", "calls/s", "gateway µs/call", "Redis µs/call", "gateway MB", "Redis MB"):
        table.add_column(column, justify="right")
    for count in dict.fromkeys(each.rollouts for each in found):
        turns = [each for each in found if each.rollouts == count]
        table.add_row(
            f"{count:,}",
            _spread([turn.calls_per_second for turn in turns]),
            *(_spread([turn.cpu_us[role] for turn in turns]) for role in ("gateway", "redis")),
            *(f"{turns[-1].memory_mb[role]:.0f}" for role in ("gateway", "redis")),
        )
    return table


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


if __name__ == "__main__":
    main()
