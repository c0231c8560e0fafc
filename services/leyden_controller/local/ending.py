"""What a keeper's report says about how its agent ended."""

from __future__ import annotations

import signal
from typing import Any

from leyden_controller.runner import Cause, Ending

_KILLED_BY = {128 + signal.SIGKILL, 128 + signal.SIGTERM}
"""Exit codes with which shells say that what they ran was killed."""

_FAULTS = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGPIPE,
}
"""Signals that a process brings on itself."""


def ending_of(report: dict[str, Any], timeout_seconds: float) -> Ending:
    """What a keeper's report says about its agent."""
    output = report["output"]
    if report["dropped_bytes"]:
        output = f"[{report['dropped_bytes']} bytes before this were dropped]\n{output}"
    if report["stopped"]:
        return Ending(Cause.STOPPED, "stopped by its controller", output)
    if report["timed_out"]:
        return Ending(Cause.TIMED_OUT, f"timed out after {timeout_seconds:g} s", output)
    if report["signal"] is not None:
        return Ending(_cause_of_signal(report), f"killed by {_name(report['signal'])}", output)
    if report["exit_code"] == 0:
        return Ending(Cause.SUCCEEDED, output=output)
    cause = Cause.KILLED if report["exit_code"] in _KILLED_BY else Cause.FAILED
    return Ending(cause, f"exited with code {report['exit_code']}", output)


def _cause_of_signal(report: dict[str, Any]) -> Cause:
    return Cause.FAILED if report["signal"] in _FAULTS else Cause.KILLED


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
