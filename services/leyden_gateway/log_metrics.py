"""What the log itself says, for Prometheus: what waits, how far readers are behind, what memory is left.

Invariants:
- every process of a deployment reports the same: these are the log's numbers, not the process's;
- a scrape asks Redis at most once in a few seconds, and waits for it no longer than its deadline; if Redis does not
  answer, that is what is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from leyden.log import Log
from leyden.log.errors import LogFull, LogUnavailable, RunMissing, ServerUnsupported

_MAX_AGE_SECONDS = 5.0
_DEADLINE_SECONDS = 3.0
_MAX_RUNS = 100
"""Runs of which each has its numbers; the newest ones, if there are more."""

_FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "leyden_log_up": ("Whether Redis answered.", ()),
    "leyden_redis_memory_bytes": ("Memory that Redis uses, and its limit (0 is none).", ("kind",)),
    "leyden_rollouts": ("Rollouts in each state.", ("run", "state")),
    "leyden_queue_waiting": ("Queued rollouts that no controller has taken.", ("run",)),
    "leyden_queue_oldest_seconds": ("For how long the oldest of them has waited.", ("run",)),
    "leyden_completions_not_given": ("Ended rollouts that a reader has not been given.", ("run", "reader")),
    "leyden_completions_not_acknowledged": ("Those it was given and has not acknowledged.", ("run", "reader")),
    "leyden_run_inflight_calls": ("Calls in flight, of all replicas.", ("run",)),
    "leyden_run_paused": ("Whether the run's calls are held back.", ("run",)),
}

Sample = tuple[str, tuple[str, ...], float]


class LogMetrics:
    """Asks the log, and remembers for a moment what it said."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._asking = asyncio.Lock()
        self._report = b""
        self._asked_at = -_MAX_AGE_SECONDS

    async def report(self) -> bytes:
        """The log's numbers in Prometheus' text format."""
        async with self._asking:
            if time.monotonic() - self._asked_at > _MAX_AGE_SECONDS:
                self._report = _rendered(await self._samples())
                self._asked_at = time.monotonic()
        return self._report

    async def _samples(self) -> list[Sample]:
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                memory = await self._log.memory.use()
                runs = await self._log.runs.names()
                of_runs = await asyncio.gather(*(self._of_run(run) for run in runs[-_MAX_RUNS:]))
        except (LogUnavailable, LogFull, ServerUnsupported, TimeoutError):
            return [("leyden_log_up", (), 0)]
        return [
            ("leyden_log_up", (), 1),
            ("leyden_redis_memory_bytes", ("used",), memory.used_bytes),
            ("leyden_redis_memory_bytes", ("limit",), memory.limit_bytes),
            *(sample for samples in of_runs for sample in samples),
        ]

    async def _of_run(self, name: str) -> list[Sample]:
        run = self._log.run(name)
        try:
            counts, backlog, lags, pause = await asyncio.gather(
                run.rollouts.counts(), run.queue.backlog(), run.completions.lags(), run.pause.state()
            )
        except RunMissing:  # it was announced, and Redis was emptied since
            return []
        return [
            *(("leyden_rollouts", (name, str(state)), count) for state, count in counts.items()),
            ("leyden_queue_waiting", (name,), backlog.waiting),
            ("leyden_queue_oldest_seconds", (name,), backlog.oldest_seconds),
            *(("leyden_completions_not_given", (name, lag.reader), lag.not_given) for lag in lags),
            *(("leyden_completions_not_acknowledged", (name, lag.reader), lag.not_acknowledged) for lag in lags),
            ("leyden_run_inflight_calls", (name,), pause.inflight),
            ("leyden_run_paused", (name,), pause.paused),
        ]


class _Samples(Collector):
    """Samples that are known already, as a collector."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        for name, (about, labels) in _FAMILIES.items():
            family = GaugeMetricFamily(name, about, labels=labels)
            for sample, values, number in self._samples:
                if sample == name:
                    family.add_metric(values, number)
            yield family


def _rendered(samples: list[Sample]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Samples(samples))
    return generate_latest(registry)
