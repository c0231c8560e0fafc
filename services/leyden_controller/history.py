"""How a rollout's attempts ended, as its log tells it to whichever controller asks.

Invariants:
- an attempt's ending is put on record once, whoever saw it;
- an attempt that was started and has no ending on record is lost: its controller is gone.
"""

from __future__ import annotations

from typing import Any

from leyden.event_types import ATTEMPT_ENDED
from leyden.log import RunLog
from leyden.triplet import MODEL_REQUEST
from leyden_controller.runner import Cause, Ending

_OUR_STATUSES = frozenset({408, 409, 429})
"""Statuses below 500 with which a call failed on our side; the gateway has tried it again in vain."""


async def record(run: RunLog, rollout_id: str, attempt: str, ending: Ending) -> None:
    """Put on record how an attempt ended; again changes nothing. Raises RolloutMissing."""
    await run.events.append(
        rollout_id,
        attempt,
        ATTEMPT_ENDED,
        {"cause": ending.cause, "message": ending.message, "output": ending.output},
        event_id=f"{ATTEMPT_ENDED}-{attempt}",
    )


async def endings(run: RunLog, rollout_id: str) -> list[Ending]:
    """How each attempt that was started has ended, in order. Raises RolloutMissing."""
    ended: dict[str, Ending] = {}
    for entry in await run.events.entries(rollout_id):
        if entry.kind == "started" and entry.attempt is not None:
            ended[entry.attempt] = Ending(Cause.LOST, "its controller was gone")
        elif entry.event_type == ATTEMPT_ENDED and entry.attempt in ended and entry.data is not None:
            ended[entry.attempt] = _ending(entry.data) or ended[entry.attempt]
    return list(ended.values())


def _ending(data: dict[str, Any]) -> Ending | None:
    """What was put on record; None if it is nothing that a controller wrote."""
    try:
        return Ending(Cause(data["cause"]), data["message"], data["output"])
    except (KeyError, ValueError):
        return None


async def failed_call(run: RunLog, rollout_id: str, attempt: str, *, succeeded: bool) -> str | None:
    """What went wrong on our side with the attempt's last call, if anything. Raises RolloutMissing.

    A call that is still open when an agent has failed was never answered. One that an agent left behind as it succeeded
    was not missed.
    """
    if not succeeded and attempt in await run.rollouts.attempts_with_open_calls(rollout_id):
        return "its last call was never answered"
    async for entry in run.events.backwards(rollout_id):
        if entry.kind == "started":
            return None
        if entry.attempt == attempt and entry.event_type == MODEL_REQUEST and entry.data is not None:
            return _failure(entry.data.get("http_status"))
    return None


def _failure(status: object) -> str | None:
    if isinstance(status, int) and (status >= 500 or status in _OUR_STATUSES):
        return f"its last call failed with status {status}"
    return None
