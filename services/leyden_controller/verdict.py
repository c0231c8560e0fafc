"""What follows from how a rollout's attempts ended: another attempt, or the rollout's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leyden.schemas import RolloutConfig, State
from leyden_controller.runner import Cause, Ending

OWN_FAILURES = frozenset({Cause.FAILED, Cause.TIMED_OUT})
"""Ends that are the agent's own; `max_attempts` limits them."""

INFRA_FAILURES = frozenset({Cause.KILLED, Cause.CALL_FAILED, Cause.LOST})
"""Ends that are ours; `max_infra_attempts` limits them."""

MESSAGE_CHARACTERS = 2000
"""How long an error message may be; the whole of the output that was kept is in the log."""


@dataclass(frozen=True, slots=True)
class Try:
    """Start this attempt."""

    attempt: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the rollout."""

    state: State
    error: str = ""


def verdict(config: RolloutConfig, endings: Sequence[Ending]) -> Try | Finish:
    """What to do after attempts "0", "1", … ended as `endings` say, in order. Stopped ones count for nothing."""
    if not endings:
        return Try("0")
    last = endings[-1]
    if last.cause is Cause.SUCCEEDED:
        return Finish(State.SUCCEEDED)
    if last.cause is Cause.REFUSED:
        return Finish(State.FAILED, error_of(last, 1))
    for kind, limit in ((OWN_FAILURES, config.max_attempts), (INFRA_FAILURES, config.max_infra_attempts)):
        count = sum(ending.cause in kind for ending in endings)
        if last.cause in kind and count >= limit:
            return Finish(State.FAILED, error_of(last, count))
    return Try(str(len(endings)))


def error_of(ending: Ending, count: int) -> str:
    """The error message of a rollout that ended so after `count` attempts: why, and the end of the output."""
    message = ending.message if count == 1 else f"{ending.message} (attempt {count} of {count})"
    output = ending.output.strip()
    if not output:
        return _start_of(message, MESSAGE_CHARACTERS)
    message = _start_of(message, MESSAGE_CHARACTERS // 2)
    room = MESSAGE_CHARACTERS - len(message) - 2
    return f"{message}: {output if len(output) <= room else '…' + output[1 - room :]}"


def _start_of(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
