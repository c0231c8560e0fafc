"""What the log costs: encoding an event, and appending it, each beside the plainest thing that could be done.

    python -m bench.log

Encoding is compared with JSON alone and with JSON and zlib; appending (a call opened and closed, a script each) with
bare XADDs of the same payload in pipelines, in one process over a private Redis with its append-only file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop
from redis.asyncio import Redis
from rich.table import Table

from bench import answers
from bench.answers import Sizes
from bench.machine import Machine
from bench.report import report
from leyden.log import Log, RunSettings, decode, encode
from leyden.log.encoding import encode_call
from leyden.redis_server import RedisServer, find_server
from leyden.schemas import DEFAULT_ATTEMPT, DEFAULT_RUN, NewRollout

_EVENTS = 64
_REPEATS = 9
_ROLLOUTS = 64


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to make bytes of an event: CPU time of each direction in µs (best of several), and size."""

    name: str
    prompt_tokens: int
    encode_us: float
    decode_us: float
    size: float


@dataclass(frozen=True, slots=True)
class Appending:
    """One way to put events on record at one concurrency; CPU is this process's, in µs an event."""

    name: str
    concurrency: int
    events_per_second: float
    median_ms: float
    p99_ms: float
    cpu_us: float


WAYS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "orjson": (orjson.dumps, orjson.loads),
    "json + zlib": (lambda event: zlib.compress(json.dumps(event).encode()), lambda b: json.loads(zlib.decompress(b))),
    "Leyden, version 1": (encode, decode),
    "Leyden": (lambda event: encode_call(event, parsed=True).payload, decode),
}


def encodings(sizes: Sizes) -> list[Encoding]:
    """Every way on events of these sizes, taking turns so that noise meets all.

    Raises:
        ValueError: a way does not give back what was put in.
    """
    events = [answers.event(sizes, seed) for seed in range(_EVENTS)]
    bodies = {name: [way[0](event) for event in events] for name, way in WAYS.items()}
    for name, (_, read) in WAYS.items():
        if [read(body) for body in bodies[name]] != events:
            raise ValueError(f"{name} does not give back what was put in")
    encode_us: dict[str, list[float]] = {name: [] for name in WAYS}
    decode_us: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(_REPEATS):
        for name, (write, read) in WAYS.items():
            encode_us[name].append(_microseconds_each(write, events))
            decode_us[name].append(_microseconds_each(read, bodies[name]))
    return [
        Encoding(
            name,
            sizes.prompt_tokens,
            min(encode_us[name]),
            min(decode_us[name]),
            statistics.mean(map(len, bodies[name])),
        )
        for name in WAYS
    ]


async def appendings(sizes: Sizes, concurrencies: Sequence[int], count: int) -> list[Appending]:
    """Bare XADDs and Leyden's calls, taking turns; `count` events each."""
    payload = encode(answers.event(sizes, 0))
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as folder, RedisServer(Path(folder)) as server:
        log, redis = Log.connect(server.url), Redis.from_url(server.url)
        await log.runs.begin(DEFAULT_RUN, RunSettings())
        run = log.run(DEFAULT_RUN)
        rollouts = [f"bench-{number}" for number in range(_ROLLOUTS)]
        await run.rollouts.create_many([NewRollout(rollout_id=rollout, input={}) for rollout in rollouts])

        async def bare(worker: int, number: int) -> None:
            await redis.xadd(f"bare:{worker % _ROLLOUTS}", {"data": payload})

        async def call(worker: int, number: int) -> None:
            rollout, call_id = rollouts[worker % _ROLLOUTS], f"{concurrency}-{worker}-{number}"
            await run.calls.open(rollout, DEFAULT_ATTEMPT, call_id, "bench", admin=True)
            await run.calls.close(rollout, DEFAULT_ATTEMPT, call_id, payload)

        found = []
        for concurrency in concurrencies:
            found.append(await _appending("XADD, one a command", concurrency, bare, count))
            found.append(await _appending("Leyden: open + close", concurrency, call, count))
        found.append(await _piped(redis, payload, count))
        await redis.aclose()
        await log.close()
    return found


async def _piped(redis: Redis, payload: bytes, count: int) -> Appending:
    """The floor of a Python client: XADDs in pipelines of 64, nothing else."""

    async def batch(worker: int, number: int) -> None:
        pipeline = redis.pipeline(transaction=False)
        for place in range(64):
            pipeline.xadd(f"piped:{place}", {"data": payload})
        await pipeline.execute()

    of_batches = await _appending("XADD, pipelines of 64", 1, batch, count // 64)
    return Appending(
        of_batches.name,
        64,
        of_batches.events_per_second * 64,
        of_batches.median_ms,
        of_batches.p99_ms,
        of_batches.cpu_us / 64,
    )


async def _appending(
    name: str, concurrency: int, append: Callable[[int, int], Awaitable[None]], count: int
) -> Appending:
    latencies: list[float] = []

    async def work(worker: int) -> None:
        for number in range(count // concurrency):
            began = time.perf_counter()
            await append(worker, number)
            latencies.append(time.perf_counter() - began)

    cpu, began = _cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(work(worker) for worker in range(concurrency)))
    seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    latencies.sort()
    return Appending(
        name=name,
        concurrency=concurrency,
        events_per_second=len(latencies) / seconds,
        median_ms=statistics.median(latencies) * 1e3,
        p99_ms=latencies[int(len(latencies) * 0.99)] * 1e3,
        cpu_us=cpu / len(latencies) * 1e6,
    )


def _microseconds_each(work: Callable[[Any], Any], items: Sequence[Any]) -> float:
    """CPU time, which other processes disturb less than they do the clock."""
    began = time.thread_time()
    for item in items:
        work(item)
    return (time.thread_time() - began) / len(items) * 1e6


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.log", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--prompt-tokens", nargs="+", type=int, default=[512, 16384])
    options.add_argument("--concurrency", nargs="+", type=int, default=[1, 16, 64])
    options.add_argument("--events", type=int, default=6400, help="appended at each concurrency")
    options.add_argument("--out", type=Path, default=Path("build/bench/log.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    encoded = [each for tokens in given.prompt_tokens for each in encodings(Sizes(tokens))]
    appended = uvloop.run(appendings(Sizes(given.prompt_tokens[0]), given.concurrency, given.events))
    found = {
        "encodings": [asdict(each) for each in encoded],
        "appendings": [asdict(each) for each in appended],
    }
    report(given.out, machine, found, _encoding_table(encoded), _appending_table(appended))


def _encoding_table(encoded: Sequence[Encoding]) -> Table:
    table = Table(title="one event")
    for column in ("prompt tokens", "way", "encode µs", "decode µs", "bytes"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for each in encoded:
        times = f"{each.encode_us:.0f}", f"{each.decode_us:.0f}"
        table.add_row(str(each.prompt_tokens), each.name, *times, f"{each.size:,.0f}")
    return table


def _appending_table(appended: Sequence[Appending]) -> Table:
    table = Table(title="events appended")
    for column in ("at", "way", "events/s", "median ms", "p99 ms", "CPU µs/event"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for each in appended:
        latency = f"{each.median_ms:.2f}", f"{each.p99_ms:.2f}"
        table.add_row(
            str(each.concurrency), each.name, f"{each.events_per_second:,.0f}", *latency, f"{each.cpu_us:.0f}"
        )
    return table


if __name__ == "__main__":
    main()
