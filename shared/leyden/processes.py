"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess

_PR_SET_PDEATHSIG = 1


def own_group_until_parent_dies() -> None:
    """For `preexec_fn`: take no Ctrl-C that is meant for the parent, and get SIGTERM when it dies, however it dies."""
    os.setpgid(0, 0)
    _sigterm_at_parents_death()


def end_with_master() -> None:
    """In a worker of `multiprocessing`: get SIGTERM when the master dies, however it dies. Elsewhere: nothing."""
    master = multiprocessing.parent_process()
    if master is None:
        return
    _sigterm_at_parents_death()
    if not master.is_alive():
        os.kill(os.getpid(), signal.SIGTERM)


def _sigterm_at_parents_death() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen, seconds: float) -> None:
    """Ask a process to end and wait; kill it if it has not after `seconds`. One that has ended is left as it is."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
