"""A rollout's reward, from the events of its last attempt.

Invariants:
- the last reward event counts, whether or not an earlier one was better formed;
- a reward is a finite number that float32 can hold; booleans, NaN and everything else is no reward;
- a reward that was filled in says so and why, so that it can be counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from leyden.schemas import Event
from leyden.triplet import REWARD, is_number

_FLOAT32_MAX = 3.4028234663852886e38


class Origin(StrEnum):
    """Where a reward comes from: the agent or a hook, or the fill value, for want of a (valid) one."""

    REPORTED = "reported"
    MISSING = "missing"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Reward:
    """What a rollout is worth; `found` is the invalid value that was reported, for the log."""

    value: float
    origin: Origin
    found: Any = None

    @property
    def filled(self) -> bool:
        return self.origin is not Origin.REPORTED


def reward_of(events: Sequence[Event], fill: float) -> Reward:
    """The reward among an attempt's events, in the log's order; `fill` where there is none or the last is invalid."""
    reported = [event.data.get("value") for event in events if event.event_type == REWARD]
    if not reported:
        return Reward(fill, Origin.MISSING)
    last = reported[-1]
    if is_reward(last):
        return Reward(float(last), Origin.REPORTED)
    return Reward(fill, Origin.INVALID, last)


def is_reward(value: Any) -> TypeGuard[int | float]:
    """Whether a value can be a reward."""
    return is_number(value) and abs(value) <= _FLOAT32_MAX
