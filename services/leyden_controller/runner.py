"""What the controller asks of a runner, whatever it runs agents on.

Invariants every runner keeps:
- `start` returns once the agent runs, or raises; it never leaves an agent behind that it did not return;
- an attempt ends once, and `ended` then says why in the words of whatever ran it;
- `close` leaves nothing running that depends on this controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from leyden.schemas import Rollout


class Cause(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The agent failed by itself."""
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """The agent can't be started as its rollout asks for it, and never will be."""
    KILLED = "killed"
    """The agent ended without having finished, by no doing of its own."""
    CALL_FAILED = "call_failed"
    """The agent ended after a call that failed on our side."""
    LOST = "lost"
    """Nobody saw how it ended, since its controller or its machine was gone."""
    STOPPED = "stopped"
    """Its controller stopped it: it was cancelled, or handed back because the controller itself must stop."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended. `message` is one line for people, `output` the end of what the agent printed."""

    cause: Cause
    message: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt to be started. `variables` are what the agent is told about its model, its log and its key."""

    rollout: Rollout
    attempt: str
    variables: Mapping[str, str]


class StartRefused(ValueError):
    """The rollout's own configuration can't be run; trying again would give the same."""


class RunnerFailed(RuntimeError):
    """The runner could not start an agent for reasons of its own; another try may succeed."""


class RunningAttempt(Protocol):
    """An agent that was started."""

    async def ended(self) -> Ending:
        """Wait for the end. It has no limit of its own: the runner ends the attempt when its time is over."""
        ...

    def kill(self) -> None:
        """End it at once, with everything that it has started; `ended` returns soon after, with `Cause.STOPPED` unless
        the agent was quicker. May be repeated."""
        ...


class Runner(Protocol):
    """Starts agents."""

    async def open(self) -> None:
        """Get ready, so that the first agent does not wait for it."""
        ...

    async def start(self, launch: Launch) -> RunningAttempt:
        """Start an agent.

        Raises:
            StartRefused: it can't be started as its rollout asks for it.
            RunnerFailed: something on our side is at fault.
        """
        ...

    async def close(self) -> None:
        """Stop whatever still runs and give back what the runner holds."""
        ...
