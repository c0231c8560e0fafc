"""What this process counts, for Prometheus.

Invariant: with several worker processes each writes its own files under PROMETHEUS_MULTIPROC_DIR, and any of them can
report the sum; what a dead one had open no longer counts.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)

CALLS = Counter(
    "leyden_gateway_calls_total", "Model calls that went on record, by protocol and outcome.", ("protocol", "outcome")
)
REFUSED = Counter(
    "leyden_gateway_calls_refused_total",
    "Model calls answered without a record, by status and why.",
    ("status", "reason"),
)
RETRIES = Counter("leyden_gateway_upstream_retries_total", "Further tries at model servers.")
TOKENS = Counter("leyden_gateway_tokens_total", "Tokens of recorded calls.", ("kind",))
ADDED = Histogram(
    "leyden_gateway_added_seconds", "Time a call spent here rather than at the model server or held.", buckets=_SECONDS
)
UPSTREAM = Histogram(
    "leyden_gateway_upstream_seconds",
    "Time a call spent at model servers, retries included.",
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
INFLIGHT = Gauge("leyden_gateway_inflight_calls", "Calls open now.", multiprocess_mode="livesum")
HELD = Gauge("leyden_gateway_held_calls", "Calls waiting for their run.", multiprocess_mode="livesum")
LOG_ERRORS = Counter(
    "leyden_gateway_log_errors_total", "Requests that failed because Redis was away or full.", ("kind",)
)


def count_call(protocol: str, response: dict[str, Any], *, ok: bool, delivered: bool) -> None:
    """Count a call that went on record, and its tokens."""
    outcome = "error" if not ok else "ok" if delivered else "undelivered"
    _calls(protocol, outcome).inc()
    usage = response.get("usage")
    if isinstance(usage, dict):
        for kind in ("prompt", "completion"):
            count = usage.get(f"{kind}_tokens")
            if isinstance(count, int) and count > 0:
                _tokens(kind).inc(count)


# Finding a labelled counter takes Prometheus' client as long as counting.
_calls = cache(CALLS.labels)
_tokens = cache(TOKENS.labels)


def report() -> bytes:
    """Everything counted so far, in Prometheus' text format."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return generate_latest()
    for file in Path(folder).glob("gauge_live*_*.db"):
        process = file.stem.rpartition("_")[2]
        if not Path("/proc", process).exists():
            mark_process_dead(int(process), folder)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry)
