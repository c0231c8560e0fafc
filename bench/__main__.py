"""The measurements of docs/performance.md, one after the other: `python -m bench [NAME...]`."""

from __future__ import annotations

import argparse
import subprocess
import sys

MEASUREMENTS = {
    "gateway": ["bench.gateway"],
    "long-prompts": ["bench.gateway", "--prompt-tokens", "16384", "--concurrency", "1", "16"],
    "streams": ["bench.gateway", "--stream", "--concurrency", "1", "16"],
    "workers": ["bench.gateway", "--systems", "stub", "leyden", "leyden, 2 workers", "--baseline", "leyden"],
    "fsync": ["bench.gateway", "--systems", "stub", "leyden", "leyden, fsync always", "--baseline", "leyden"],
    "growing-rollout": ["bench.growing_rollout"],
    "live-rollouts": ["bench.live_rollouts"],
    "endurance": ["bench.endurance"],
    "queue": ["bench.queue_to_start"],
    "log": ["bench.log"],
    "batch": ["bench.batch"],
}
"""Module and arguments of each, by its name on the command line."""


def main() -> int:
    """Run each in a process of its own, so that none inherits another's memory; how many failed."""
    options = argparse.ArgumentParser("python -m bench", description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        choices=[[], *MEASUREMENTS],
        help=f"of {', '.join(MEASUREMENTS)}; without any, all of them. Each is a module with options of its own, "
        "which its --help tells: " + ", ".join(dict.fromkeys(module for module, *_ in MEASUREMENTS.values())),
    )
    options.add_argument("--rounds", type=int, help="of those that compare gateways; 3 if not given")
    given = options.parse_args()
    return sum(_run(name, given.rounds) != 0 for name in given.names or MEASUREMENTS)


def _run(name: str, rounds: int | None) -> int:
    module, *arguments = MEASUREMENTS[name]
    if module == "bench.gateway":
        arguments += ["--out", f"build/bench/{name}.json"]
        arguments += ["--rounds", str(rounds)] if rounds else []
    return subprocess.run([sys.executable, "-m", module, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main())
