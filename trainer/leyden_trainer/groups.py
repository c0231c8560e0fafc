"""Which rollouts the trainer has asked for, and how far they are: written by the log's thread, awaited by the trainer.

Invariants:
- a group is one prompt with its repeats; it is complete when none of its repeats is open;
- a repeat is settled once, with the rows it gave (none if it is left out);
- a wait ends when what it waits for is there, when something failed, or when nothing has moved for the time given; the
  error then names the rollouts that are still open.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_NAMED_IN_ERRORS = 10


class RolloutsStalled(TimeoutError):
    """No rollout that was waited for has moved for too long."""


@dataclass(slots=True)
class Outcome:
    """What one repeat came to, in the rollout that settled it.

    Either `rows`, the keys and tags of its rows in row order, or `failure`, why it has none. `filled`: the rollout
    failed and is used all the same; `reward_filled`: no valid reward was reported; `dropped` counts calls by reason.
    """

    rollout_id: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    reward: float = 0.0
    digest: str = ""
    failure: str = ""
    filled: bool = False
    reward_filled: bool = False
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """One prompt: verl's `uid`, its place among its partition's prompts, and its repeats."""

    uid: str
    partition: str
    order: int
    step: int
    open: dict[int, str]
    """Repeat → the rollout that is awaited for it."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.open

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Keys and tags of the group's rows, by repeat and then by row."""
        return {key: tag for _, outcome in sorted(self.outcomes.items()) for key, tag in outcome.rows.items()}


class Groups:
    """The groups that were asked for and not yet taken."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._changed = threading.Condition()
        self._moved_at = time.monotonic()
        self._failure: BaseException | None = None

    def add(self, groups: Iterable[Group]) -> None:
        with self._changed:
            self._groups |= {group.uid: group for group in groups}
            self._note()

    def replace_open(self, uid: str, repeat: int, rollout_id: str) -> None:
        """Another rollout is now awaited for a repeat."""
        with self._changed:
            self._groups[uid].open[repeat] = rollout_id
            self._note()

    def settle(self, uid: str, repeat: int, outcome: Outcome) -> None:
        """Note what a repeat came to."""
        with self._changed:
            group = self._groups[uid]
            del group.open[repeat]
            group.outcomes[repeat] = outcome
            self._note()

    def moved(self) -> None:
        """Something that is waited for has shown life."""
        with self._changed:
            self._moved_at = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """Make every wait raise `error`."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def waiting(self) -> bool:
        """Whether any repeat is still open."""
        with self._changed:
            return any(group.open for group in self._groups.values())

    def of(self, partition: str) -> list[Group]:
        """The partition's groups, in order."""
        with self._changed:
            return self._of(partition)

    def wait(self, ready: Callable[[list[Group]], T | None], partition: str, stalled_after_seconds: float) -> T:
        """Return what `ready` makes of the partition's groups in order, as soon as that is not None.

        Raises:
            RolloutsStalled: nothing moved for `stalled_after_seconds`.
            BaseException: whatever was given to `fail`.
        """
        with self._changed:
            self._moved_at = time.monotonic()
            while True:
                if self._failure is not None:
                    raise self._failure
                if (result := ready(self._of(partition))) is not None:
                    return result
                patience = self._moved_at + stalled_after_seconds - time.monotonic()
                if patience <= 0:
                    raise RolloutsStalled(self._stalled(partition, stalled_after_seconds))
                self._changed.wait(patience)

    def take(self, uids: Iterable[str]) -> list[Group]:
        """Remove groups and return them."""
        with self._changed:
            return [self._groups.pop(uid) for uid in uids]

    def _of(self, partition: str) -> list[Group]:
        return sorted((g for g in self._groups.values() if g.partition == partition), key=lambda group: group.order)

    def _note(self) -> None:
        self._moved_at = time.monotonic()
        self._changed.notify_all()

    def _stalled(self, partition: str, seconds: float) -> str:
        awaited = [rollout_id for group in self._of(partition) for _, rollout_id in sorted(group.open.items())]
        named = ", ".join(awaited[:_NAMED_IN_ERRORS]) or "none is open"
        more = f" and {len(awaited) - _NAMED_IN_ERRORS} more" if len(awaited) > _NAMED_IN_ERRORS else ""
        return f"no {partition} rollout has moved for {seconds:g} s; still waiting for {len(awaited)}: {named}{more}"
