"""A gateway's memory over 100,000 calls.

    python -m bench.endurance

Calls are small, since what would grow is kept a call, not a token, and go to `--rollouts` live rollouts in turn.
"""

from __future__ import annotations

import argparse
import asyncio
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
from bench.processes import memory_mb
from bench.report import report
from bench.systems import Leyden, Setting, stub_server
from leyden.redis_server import find_server

_SLICE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Reading:
    """Memory in MB after so many calls."""

    calls: int
    gateway_mb: float
    redis_mb: float


async def endure(calls: int, *, rollouts: int, concurrency: int, sizes: Sizes, stream: bool) -> list[Reading]:
    """Readings every few seconds until so many calls were answered.

    Raises:
        NotStarted, LoadFailed
    """
    body = answers.dumps(answers.request(sizes, stream=stream))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leyden-bench-")))
        url, stub = await stack.enter_async_context(stub_server(sizes, folder, 64))
        names = [f"endurance-{number:04d}" for number in range(rollouts)]
        system = await stack.enter_async_context(Leyden()(Setting(url, stub, folder, names)))
        readings, done = [], 0
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("calls", total=calls)
            while done < calls:
                load = await asyncio.to_thread(
                    put_load,
                    *(system.base_url, system.targets, body, folder),
                    connections=concurrency,
                    seconds=_SLICE_SECONDS,
                )
                done += load.calls
                memory = {role: memory_mb(process) for role, process in system.processes.items()}
                readings.append(Reading(done, memory["gateway"], memory["redis"]))
                progress.update(bar, completed=done)
    return readings


def main() -> None:
    options = argparse.ArgumentParser("python -m bench.endurance", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--calls", type=int, default=100_000)
    options.add_argument("--rollouts", type=int, default=1000)
    options.add_argument("--concurrency", type=int, default=16)
    options.add_argument("--prompt-tokens", type=int, default=64)
    options.add_argument("--answer-tokens", type=int, default=16)
    options.add_argument("--stream", action="store_true")
    options.add_argument("--out", type=Path, default=Path("build/bench/endurance.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    readings = asyncio.run(
        endure(
            given.calls,
            rollouts=given.rollouts,
            concurrency=given.concurrency,
            sizes=Sizes(given.prompt_tokens, given.answer_tokens),
            stream=given.stream,
        )
    )
    report(given.out, machine, {"readings": [asdict(each) for each in readings]}, _table(readings))


def _table(readings: Sequence[Reading]) -> Table:
    """At most a dozen readings, the first and the last among them."""
    table = Table(title="memory over calls")
    for column in ("calls", "gateway MB", "Redis MB"):
        table.add_column(column, justify="right")
    every = max(1, len(readings) // 10)
    for place, each in enumerate(readings):
        if place % every == 0 or place == len(readings) - 1:
            table.add_row(f"{each.calls:,}", f"{each.gateway_mb:.1f}", f"{each.redis_mb:.0f}")
    return table


if __name__ == "__main__":
    main()
