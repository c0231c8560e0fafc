"""The processes of a demo: what makes the model, `leyden up`, and the trainer.

Each ends with the demo, however that ends, and says with its last lines why it failed.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from leyden import deployment
from leyden.processes import end, free_port, own_group_until_parent_dies

ROOT = Path(__file__).parents[2]
_UP_SECONDS = 60.0
_STOP_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_LAST_LINES = 25


class ProcessFailed(RuntimeError):
    """A process of the demo ended or did not come up; the message ends with the last lines of its log."""


@contextlib.contextmanager
def leyden_up(data: Path, slots: int) -> Iterator[deployment.Deployment]:
    """Redis, a gateway and a controller, for as long as the context is open.

    Raises:
        ProcessFailed: they did not come up.
    """
    log, port = data / "up.log", free_port()
    command = ["up", "--data-dir", str(data), "--port", str(port), "--slots", str(slots)]
    process = _start(["-m", "leyden.cli.main", *command], log, {})
    try:
        _wait_until_ready(process, log, f"http://127.0.0.1:{port}/readyz")
        known = deployment.load(data)
        assert known is not None, "`leyden up` writes it before the gateway is ready"
        yield known
    finally:
        end(process, _STOP_SECONDS)


def make_model(maker: str, folder: Path, log: Path) -> None:
    """Have the module `maker` make the model's folder; in a process of its own, since it takes much memory.

    Raises:
        ProcessFailed: it could not.
    """
    _run_to_end("the model's making", ["-m", maker, str(folder)], log, {})


def train(known: deployment.Deployment, config: Path, overrides: Sequence[str], log: Path) -> None:
    """Run `leyden train` to its end; its output is appended to `log`.

    Raises:
        ProcessFailed: it did not end well.
    """
    environment = {
        "LEYDEN_REDIS_URL": known.redis_url,
        "LEYDEN_GATEWAY_URL": known.gateway_url,
        "LEYDEN_KEY": known.key,
    }
    command = ["-m", "leyden.cli.main", "train", "--config", str(config), *overrides]
    _run_to_end("the training", command, log, environment)


def last_words(log: Path, what: str) -> str:
    """`what`, with the last lines of a log."""
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join([f"{what}; its log, {log}, ends with:", *lines])


def _run_to_end(name: str, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
    process = _start(arguments, log, environment)
    try:
        code = process.wait()
    finally:
        end(process, _STOP_SECONDS)
    if code != 0:
        raise ProcessFailed(last_words(log, f"{name} ended with code {code}"))


def _start(arguments: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=own_group_until_parent_dies,
        )


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, url: str) -> None:
    deadline = time.monotonic() + _UP_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ProcessFailed(last_words(log, f"leyden up ended with code {process.returncode}"))
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(_LOOK_SECONDS)
    raise ProcessFailed(last_words(log, f"leyden up was not ready at {url} within {_UP_SECONDS:g} s"))
