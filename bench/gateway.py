"""Gateways beside each other: calls a second, latency, CPU and memory, with one stub model server and one load.

    python -m bench.gateway                                  # the stub alone, agl-server, rllm-model-gateway, Leyden
    python -m bench.gateway --systems stub leyden --seconds 3 --rounds 1
    python -m bench.gateway --stream                         # without agl-server, which refuses streams

Invariants:
- in each round every system gets its turn at each concurrency, so that what else the machine does meets all of them;
- after the last round, what each gateway has on record is compared with what it answered: all of it must be there;
- a sample of records is compared with what the stub can have said: ids and log probs must be the very ones.

The others need Python 3.12 and environments of their own:
    python3.12 -m venv .venv-agl && .venv-agl/bin/pip install agentlightning==1.0.2
    python3.12 -m venv .venv-rllm && .venv-rllm/bin/pip install rllm-model-gateway==0.1.0
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench import answers
from bench.answers import Sizes
from bench.load import Load, put_load
from bench.machine import Machine
from bench.processes import cpu_seconds, memory_mb
from bench.report import report
from bench.systems import SYSTEMS, Missing, Sampled, Setting, System, sampled_in, stub_server
from leyden.redis_server import find_server

_COMPARED = ["stub", "agl-server", "rllm-model-gateway", "leyden"]
_ROLLOUTS = 64
_ANSWERS = 64
_CHECKED = 3
"""Rollouts whose records are compared with what the stub can have said."""

_WARM_UP_SECONDS = 1
_SETTLE_SECONDS = 3.0
_RECORD_SECONDS = 60.0


class RecordDiffers(RuntimeError):
    """A gateway answered calls that it has not on record, or recorded what the stub never said."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One system's turn at one concurrency; CPU is by the process's role, in µs a call."""

    system: str
    concurrency: int
    load: Load
    cpu_us: dict[str, float]
    machine_load: float


@dataclass(slots=True)
class Results:
    """All turns of a comparison, and what was found after it."""

    machine: Machine
    sizes: Sizes
    stream: bool
    baseline: str
    turns: list[Turn] = field(default_factory=list)
    answered: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    memory_mb: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, system: str, concurrency: int) -> list[Turn]:
        return [turn for turn in self.turns if (turn.system, turn.concurrency) == (system, concurrency)]

    def cells(self) -> Iterable[tuple[str, int, list[Turn]]]:
        """The turns by system and concurrency, in the order in which they were first measured."""
        for system, concurrency in dict.fromkeys((turn.system, turn.concurrency) for turn in self.turns):
            yield system, concurrency, self.of(system, concurrency)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "table": [
                {"system": system, "concurrency": concurrency, **_summary(turns)}
                for system, concurrency, turns in self.cells()
            ]
        }


async def compare(
    names: Sequence[str],
    concurrencies: Sequence[int],
    *,
    rounds: int,
    seconds: int,
    sizes: Sizes,
    stream: bool,
    baseline: str,
) -> Results:
    """Measure the systems of these names.

    Raises:
        RecordDiffers, NotStarted, LoadFailed
    """
    results = Results(Machine.here(find_server()), sizes, stream, baseline)
    body = answers.dumps(answers.request(sizes, stream=stream))
    direct = answers.dumps(answers.with_token_ids(answers.request(sizes, stream=stream)))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leyden-bench-")))
        systems = await _start(names, folder, sizes, stack)
        systems = {name: system for name, system in systems.items() if system.streams or not stream}
        plan = [(c, name) for _ in range(rounds) for c in concurrencies for name in systems]
        before = {name: await system.recorded() for name, system in systems.items()}
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=len(plan) + len(systems))
            for name, system in systems.items():
                progress.update(bar, description=f"warm-up {name}", advance=1)
                await _turn(name, system, direct if name == "stub" else body, folder, 4, _WARM_UP_SECONDS, results)
            results.turns.clear()
            for concurrency, name in plan:
                progress.update(bar, description=f"{name}, concurrency {concurrency}")
                sent = direct if name == "stub" else body
                results.turns.append(await _turn(name, systems[name], sent, folder, concurrency, seconds, results))
                progress.advance(bar)
        await asyncio.sleep(_SETTLE_SECONDS)  # calls that wrk dropped may still run
        for name, system in systems.items():
            results.memory_mb[name] = {role: memory_mb(process) for role, process in system.processes.items()}
            if system.keeps_record:
                results.recorded[name] = await recorded_since(system, before[name], results.answered[name])
                await _check_record(name, system, results, dropped=sum(c for c, n in plan if n == name) + 4)
    return results


async def _start(names: Sequence[str], folder: Path, sizes: Sizes, stack: AsyncExitStack) -> dict[str, System]:
    url, stub = await stack.enter_async_context(stub_server(sizes, folder, _ANSWERS))
    setting = Setting(url, stub, folder, [f"bench-{number:03d}" for number in range(_ROLLOUTS)])
    systems = {}
    for name in names:
        try:
            systems[name] = await stack.enter_async_context(SYSTEMS[name](setting))
        except Missing as missing:
            sys.stderr.write(f"{name} is left out, since it is not installed: {missing}\n")
    return systems


async def recorded_since(system: System, before: int, answered: int) -> int:
    """The calls on record, once it has all that were answered or does not get them in time: some record later."""
    deadline = time.monotonic() + _RECORD_SECONDS
    while True:
        recorded = await system.recorded() - before
        if recorded >= answered or time.monotonic() > deadline:
            return recorded
        await asyncio.sleep(0.5)


async def _turn(
    name: str, system: System, body: bytes, folder: Path, concurrency: int, seconds: int, results: Results
) -> Turn:
    before = {role: cpu_seconds(process) for role, process in system.processes.items()}
    load = await asyncio.to_thread(
        put_load, system.base_url, system.targets, body, folder, connections=concurrency, seconds=seconds
    )
    cpu_us = {
        role: (cpu_seconds(process) - before[role]) / load.calls * 1e6 for role, process in system.processes.items()
    }
    results.answered[name] = results.answered.get(name, 0) + load.calls
    return Turn(name, concurrency, load, cpu_us, os.getloadavg()[0])


async def _check_record(name: str, system: System, results: Results, *, dropped: int) -> None:
    """`dropped` is how many calls wrk may have sent without waiting for the answer."""
    answered, recorded = results.answered[name], results.recorded[name]
    if not answered <= recorded <= answered + dropped:
        raise RecordDiffers(
            f"{name} answered {answered} calls and has {recorded} on record (up to {dropped} more may be)"
        )
    said = [sampled_in(answers.answer(results.sizes, seed)) for seed in range(_ANSWERS)]
    checked = 0
    for rollout in system.rollouts:
        sampled = await system.sampled(rollout)
        if wrong := [each for each in sampled if not _was_said(each, said)]:
            raise RecordDiffers(f"{name}: the record of {rollout} holds what the stub never said: {wrong[0]}")
        checked += bool(sampled)
        if checked == _CHECKED:
            return
    if not checked:
        raise RecordDiffers(f"{name} has no record of any of the {answered} calls that it answered")


def _was_said(sampled: Sampled, said: Sequence[Sampled]) -> bool:
    """Whether it is an answer of the stub, or the beginning of one: wrk breaks off the streams of its last calls."""
    prompt, ids, log_probs = sampled
    count = len(ids)
    return any(each[0] == prompt and each[1][:count] == ids and each[2][:count] == log_probs for each in said)


def _summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians over the rounds, and the range of calls a second."""
    rates = [turn.load.calls_per_second for turn in turns]
    return {
        "calls_per_second": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "median_ms": statistics.median(turn.load.median_ms for turn in turns),
        "p99_ms": statistics.median(turn.load.p99_ms for turn in turns),
        "cpu_us": {role: statistics.median(turn.cpu_us[role] for turn in turns) for role in turns[0].cpu_us},
    }


def table(results: Results) -> Table:
    """For the terminal: a line a concurrency and system; ratios are medians of the ratios within a round."""
    shown = Table(title=f"{results.sizes}{', streamed' if results.stream else ''}; × {results.baseline}")
    for column in ("at", "system", "calls/s", "lowest", "highest", "×", "median", "added", "p99", "CPU/call"):
        shown.add_column(column, justify="left" if column in ("system", "CPU/call") else "right", no_wrap=True)
    for system, concurrency, turns in sorted(results.cells(), key=lambda cell: cell[1]):
        summary = _summary(turns)
        stub = results.of("stub", concurrency)
        added = f"{summary['median_ms'] - _summary(stub)['median_ms']:.2f} ms" if stub and system != "stub" else ""
        shown.add_row(
            str(concurrency),
            system,
            f"{summary['calls_per_second']:,.0f}",
            f"{summary['lowest']:,.0f}",
            f"{summary['highest']:,.0f}",
            _ratio(turns, results.of(results.baseline, concurrency)),
            f"{summary['median_ms']:.2f} ms",
            added,
            f"{summary['p99_ms']:.2f} ms",
            ", ".join(f"{role} {cost:.0f} µs" for role, cost in summary["cpu_us"].items()),
        )
    return shown


def _ratio(turns: Sequence[Turn], others: Sequence[Turn]) -> str:
    """The median of the ratios of calls a second, and their range."""
    if not others:
        return ""
    ratios = [one.load.calls_per_second / other.load.calls_per_second for one, other in zip(turns, others, strict=True)]
    return f"{statistics.median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f})"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.gateway", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=_COMPARED, metavar="SYSTEM")
    options.add_argument("--baseline", choices=list(SYSTEMS), help="of the ratios; agl-server, for streams rLLM's")
    options.add_argument("--concurrency", nargs="+", type=int, default=[1, 16, 64])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=int, default=5, help="of each turn")
    options.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    options.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    options.add_argument("--stream", action="store_true", help="ask for streams; systems that refuse them are left out")
    options.add_argument("--out", type=Path, default=Path("build/bench/gateway.json"))
    given = options.parse_args()
    results = asyncio.run(
        compare(
            given.systems,
            given.concurrency,
            rounds=given.rounds,
            seconds=given.seconds,
            sizes=Sizes(given.prompt_tokens, given.answer_tokens),
            stream=given.stream,
            baseline=given.baseline or ("rllm-model-gateway" if given.stream else "agl-server"),
        )
    )
    recorded = [
        f"{name}: {results.answered[name]:,} calls answered, {recorded:,} on record"
        for name, recorded in results.recorded.items()
    ]
    resident = [
        f"{name}: " + ", ".join(f"{role} {mb:.0f} MB" for role, mb in roles.items())
        for name, roles in results.memory_mb.items()
    ]
    report(given.out, results.machine, results.as_json(), table(results), *recorded, *resident)


if __name__ == "__main__":
    main()
