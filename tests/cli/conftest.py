"""The `leyden` command as users run it: a process of its own, told of the log by the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Leyden = Callable[..., subprocess.CompletedProcess[str]]

LEYDEN = (sys.executable, "-m", "leyden.cli.main")


@pytest.fixture
def leyden(redis_url: str, tmp_path: Path) -> Leyden:
    """Run `leyden ARGUMENTS` on the emptied log and return what it printed."""

    def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {**os.environ, "LEYDEN_REDIS_URL": redis_url, "COLUMNS": "160", **environment}
        return subprocess.run(
            [*LEYDEN, *arguments], capture_output=True, text=True, timeout=60, env=settings, cwd=tmp_path, check=False
        )

    return command
