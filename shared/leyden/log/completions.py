"""Finished rollouts in the order in which they ended, for readers that each have their own place.

Invariants:
- a reader gets every completion at least once, from the first on, and keeps it pending until it acknowledges; what was
  on its way when a read broke comes with the next one;
- a rollout is freed when every reader of its run has acknowledged it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from leyden.cancellation import heed_cancellation
from leyden.log.blocking import Entries, entries_of, read_stream, within
from leyden.log.errors import LeaseLost, RunMissing
from leyden.log.index import Index
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import State

_HIGHEST = 2**63 - 1
_ANSWER_SECONDS = 5.0
"""How long a read that waits for nothing may take."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A rollout that ended as the `ordinal`-th of its run, counting from 1."""

    ordinal: int
    rollout_id: str
    state: State
    is_train: bool
    data_id: str


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind: rollouts that ended and were not given to it, and that it has not acknowledged."""

    reader: str
    not_given: int
    not_acknowledged: int


class Completions:
    """The completions of one run."""

    def __init__(self, redis: Redis, blocking: Redis, scripts: Scripts, index: Index, k: RunKeys) -> None:
        self._redis = redis
        self._blocking = blocking
        self._scripts = scripts
        self._index = index
        self._keys = k
        self._places: dict[tuple[str, str], int] = {}
        """The last ordinal given to a reader's consumer by a read of this process."""
        self._broken: set[tuple[str, str]] = set()
        """Consumers whose last read did not come back."""

    async def page(self, after: int, limit: int) -> tuple[list[Completion], int]:
        """Up to `limit` completions past the `after`-th, and how many there ever were; freed ones are left out."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.xrange(self._keys.completions, f"({min(max(0, after), _HIGHEST)}-0", "+", count=max(1, limit))
        pipeline.hget(self._keys.settings, "completed")
        try:
            rows, total = await pipeline.execute()
        except RedisError as error:
            raise_as_log_error(error)
        return _completions([(text(entry), fields) for entry, fields in rows]), int(text(total) or 0)

    async def lags(self) -> list[Lag]:
        """How far each reader of the run is behind."""
        try:
            completed, readers = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.settings, ["completed", "readers"]
            )
            if not readers:
                return []
            groups: Any = await self._redis.xinfo_groups(self._keys.completions)
        except RedisError as error:
            raise_as_log_error(error)
        return [
            Lag(
                reader=text(group["name"]),
                # Entry ids count completions.
                not_given=max(0, int(text(completed) or 0) - int(text(group["last-delivered-id"]).split("-")[0])),
                not_acknowledged=group["pending"],
            )
            for group in groups
        ]

    async def wait(self, after: int, timeout_seconds: float) -> None:
        """Wait until there is a completion past the `after`-th, or the time is over; takes nothing."""
        await read_stream(self._blocking, self._keys.completions, f"{after}-0", seconds=timeout_seconds, count=1)

    async def read(self, reader: str, consumer: str, count: int, timeout_seconds: float) -> list[Completion]:
        """Up to `count` completions that the reader has not been given; waits for the first, none if none came.

        Raises:
            RunMissing: the run has no such reader.
            LogUnavailable
        """
        who = reader, consumer
        if who in self._broken:
            # The server may have given out what never arrived: it is pending, past what did arrive.
            rows = await self._given(reader, consumer, f"{self._places.get(who, 0)}-0", count)
            self._broken.discard(who)
            if rows:
                return self._arrived(who, rows)
        heed_cancellation()
        self._broken.add(who)
        reply = await within(timeout_seconds, self._read_group(reader, consumer, ">", count, timeout_seconds))
        self._broken.discard(who)
        return self._arrived(who, entries_of(reply))

    async def pending(self, reader: str, consumer: str) -> list[Completion]:
        """What this consumer was given and has not acknowledged, oldest first.

        Raises:
            RunMissing: the run has no such reader.
            LogUnavailable
        """
        found: list[Completion] = []
        after = "0-0"
        while True:
            rows = await self._given(reader, consumer, after, 1000)
            if not rows:
                return found
            found += _completions(rows)
            after = rows[-1][0]

    async def acknowledge(self, reader: str, completions: Iterable[Completion], *, epoch: int | None = None) -> int:
        """Be done with completions; returns how many rollouts were freed. Asking again changes nothing.

        Raises:
            LeaseLost: an `epoch` is given, and another trainer holds the lease; some may be acknowledged.
        """
        outcomes = await asyncio.gather(*(self._acknowledge(reader, each, epoch) for each in completions))
        if b"lost" in outcomes:
            raise LeaseLost(f"run {self._keys.run}: the trainer of epoch {epoch} no longer holds the lease")
        if any(outcome != b"kept" for outcome in outcomes):
            await self._index.release_freed(self._keys)
        return outcomes.count(b"freed")

    async def free_acknowledged(self) -> int:
        """Free what all remaining readers have acknowledged, after one was removed; returns how many rollouts.

        Raises:
            LogUnavailable
        """
        freed, after = 0, 0
        while True:
            page, _ = await self.page(after, 1000)
            if not page:
                return freed
            freed += await self.acknowledge("", page)
            after = page[-1].ordinal

    async def _acknowledge(self, reader: str, completion: Completion, epoch: int | None) -> bytes:
        k, rollout_id = self._keys, completion.rollout_id
        (outcome,) = await self._scripts.run(
            "acknowledge",
            [
                k.rollout(rollout_id),
                k.events(rollout_id),
                k.completions,
                k.settings,
                k.in_state(State.SUCCEEDED),
                k.in_state(State.FAILED),
                k.freed,
            ],
            [rollout_id, completion.ordinal, reader, "" if epoch is None else epoch],
        )
        return outcome

    def _arrived(self, who: tuple[str, str], rows: Entries) -> list[Completion]:
        if rows:
            self._places[who] = int(rows[-1][0].split("-")[0])
        return _completions(rows)

    async def _given(self, reader: str, consumer: str, after: str, count: int) -> Entries:
        return entries_of(await within(_ANSWER_SECONDS, self._read_group(reader, consumer, after, count, None)))

    async def _read_group(self, reader: str, consumer: str, after: str, count: int, block_seconds: float | None):
        block = None if block_seconds is None else max(1, int(block_seconds * 1000))
        try:
            return await self._blocking.xreadgroup(
                reader, consumer, {self._keys.completions: after}, count=count, block=block
            )
        except ResponseError as error:
            if str(error).startswith("NOGROUP"):
                raise RunMissing(f"{self._keys.run} with a reader {reader}") from error
            raise


def _completions(rows: Entries) -> list[Completion]:
    return [
        Completion(
            ordinal=int(entry.split("-")[0]),
            rollout_id=text(fields[b"id"]),
            state=State(text(fields[b"state"])),
            is_train=fields[b"is_train"] == b"1",
            data_id=text(fields[b"data_id"]),
        )
        for entry, fields in rows
        if fields
    ]
