"""What the calls that this process has put on record begin with, so that later ones need not repeat it.

Invariants:
- a call is known only once it is on record, by the creation of its rollout;
- it takes no more memory than the setting says: rollouts that made no call for longest are forgotten first, whose next
  call is then recorded whole.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from leyden.log.prefixes import NOTHING, NewMarks, Prefixes

_ROLLOUT_BYTES = 700
"""What a rollout takes beside its prefixes, about."""


class Creation(NamedTuple):
    """A rollout from its creation until it is freed: nothing is shared with another under the same id."""

    run: str
    rollout_id: str
    nonce: str


class RecordedPrefixes:
    """The prefixes of every rollout of which this process recorded a call lately."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rollouts: OrderedDict[Creation, Prefixes] = OrderedDict()
        self.size_bytes = 0

    def of(self, rollout: Creation) -> Prefixes:
        """Those of one rollout."""
        return self._rollouts.get(rollout, NOTHING)

    def add(self, rollout: Creation, call_id: str, marks: NewMarks) -> None:
        """Take note of what a call that is on record begins with."""
        prefixes = self.of(rollout).after(call_id, marks)
        self.forget(rollout)
        self._rollouts[rollout] = prefixes
        self.size_bytes += _size_bytes(prefixes)
        while self.size_bytes > self._limit_bytes:
            self.forget(next(iter(self._rollouts)))

    def forget(self, rollout: Creation) -> None:
        """Know nothing of a rollout any more."""
        prefixes = self._rollouts.pop(rollout, None)
        if prefixes is not None:
            self.size_bytes -= _size_bytes(prefixes)


def _size_bytes(prefixes: Prefixes) -> int:
    return _ROLLOUT_BYTES + prefixes.size_bytes
