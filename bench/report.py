"""What a measurement found, as a file of JSON and on the terminal."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from bench.machine import Machine

_WIDTH = 160
"""Of a file that the terminal's output goes to, so that no table is cut."""


def report(out: Path, machine: Machine, found: Mapping[str, Any], *shown: RenderableType) -> None:
    """Write `found`, which JSON can hold, to `out` with the machine's description, and show `shown` below that."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": asdict(machine), **found}, indent=1))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for each in (str(machine), *shown, f"written to {out}"):
        console.print(each)
