"""Starts what is measured as processes of their own, and reads their CPU time and memory.

Invariants:
- a process that was started here has ended, with its children, when its context is left;
- what it printed is in a file that an error names.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0


class NotStarted(RuntimeError):
    """A process ended, or did not listen in time; the message holds its last words."""


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    folder: Path,
    *,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[psutil.Process]:
    """Run `command` in its own process group, printing to `folder/name.log`; wait until it listens on `port` if given.

    `env` is added to this process's environment.

    Raises:
        NotStarted
    """
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        if port is not None:
            _wait_until_listening(name, process, port, log)
        yield psutil.Process(process.pid)
    finally:
        _stop(process)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of the process and its living children."""
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def memory_mb(process: psutil.Process) -> float:
    """Memory of the process and its living children in MB (10⁶ bytes); a page that several map counts once in all."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / 1e6


def _wait_until_listening(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                words = " / ".join(log.read_text(errors="replace").splitlines()[-5:])
                raise NotStarted(f"{name} does not listen on port {port} (see {log}): {words}") from None
            time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
