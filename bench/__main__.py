"""Every measurement of docs/performance.md, one after the other: `python -m bench`."""

from __future__ import annotations

import subprocess
import sys

_MEASUREMENTS = ("bench.gateway", "bench.queue_to_start", "bench.log", "bench.batch")


def main() -> int:
    """Run each in a process of its own, so that none inherits another's memory; the number that failed."""
    return sum(subprocess.run([sys.executable, "-m", name]).returncode != 0 for name in _MEASUREMENTS)


if __name__ == "__main__":
    sys.exit(main())
