"""How many calls this process takes on at once.

Invariants:
- a call that was taken on is never sent away for want of room, also when a pause it was held through is over;
- held calls take no room: an update lasts long, and must not turn agents away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooManyCalls(RuntimeError):
    """This process has as many calls under way as it may; another replica, or a later try, may take the call."""

    def __init__(self, under_way: int, limit: int) -> None:
        super().__init__(f"{under_way} calls are under way in this replica, which takes {limit} (max_concurrent_calls)")


class Admission:
    """Counts the calls under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.under_way = 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Take on a call, from before its body is read to its answer.

        Raises:
            TooManyCalls
        """
        if self.under_way >= self._limit:
            raise TooManyCalls(self.under_way, self._limit)
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave a call's room to others while it waits for its run."""
        self.under_way -= 1
        try:
            yield
        finally:
            self.under_way += 1
