"""Rollouts to launch: a stream that controllers share through one consumer group.

Invariants:
- an entry stays pending under its controller until the rollout ends, as that controller's lease;
- a controller renews its leases; what nobody renews is taken over by another;
- whoever lost an entry learns it on the next renewal and must stop its agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from leyden.log.blocking import entries_of, last_id, read_stream
from leyden.log.errors import LeaseLost, RunMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text

_GROUP = "controllers"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Rollouts that no controller has: how many, and for how long the oldest has waited."""

    waiting: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A queue entry that this controller now holds."""

    entry: str
    rollout_id: str


class Queue:
    """The queue of one run."""

    def __init__(self, redis: Redis, blocking: Redis, scripts: Scripts, k: RunKeys) -> None:
        self._redis = redis
        self._blocking = blocking
        self._scripts = scripts
        self._keys = k

    async def take(self, consumer: str, count: int) -> list[Taken]:
        """Take up to `count` entries that no controller has, without waiting.

        If the answer is lost on its way, what was in it is held by `consumer` all the same: it comes to `take_over`.

        Raises:
            RunMissing: the run has not begun.
        """
        try:
            reply = await self._redis.xreadgroup(_GROUP, consumer, {self._keys.queue: ">"}, count=count)
        except RedisError as error:
            self._raise(error)
        return [Taken(entry, text(fields[b"id"])) for entry, fields in entries_of(reply)]

    async def wait(self, after: str, timeout_seconds: float) -> str:
        """Wait until the queue has grown past the entry id `after`, or the time is over; returns its last id.

        Takes nothing, so a controller may wait while it has no slot free.
        """
        await read_stream(self._blocking, self._keys.queue, after, seconds=timeout_seconds, count=1)
        newest = await last_id(self._redis, self._keys.queue)
        return max(newest, after, key=_order)

    async def renew(self, consumer: str, entries: Sequence[str]) -> set[str]:
        """Show that the controller is alive and return those of `entries` that it no longer holds."""
        if not entries:
            return set()
        lost = await self._scripts.run("renew_lease", [self._keys.queue], [consumer, *entries])
        return {text(entry) for entry in lost}

    async def take_over(self, consumer: str, idle_seconds: float, count: int) -> list[Taken]:
        """Take up to `count` entries that their controllers have not renewed for `idle_seconds`."""
        taken: list[Taken] = []
        cursor = "0-0"
        while len(taken) < count:
            try:
                reply = await self._redis.xautoclaim(
                    self._keys.queue, _GROUP, consumer, int(idle_seconds * 1000), cursor, count=count - len(taken)
                )
            except RedisError as error:
                self._raise(error)
            taken += [Taken(text(entry), text(fields[b"id"])) for entry, fields in reply[1] if fields]
            cursor = text(reply[0])
            if cursor == "0-0":
                break
        return taken

    async def hand_back(self, consumer: str, entry: str, rollout_id: str) -> None:
        """Put a rollout back at the end of the queue, for any controller; doing so again changes nothing.

        Raises:
            LeaseLost: the controller no longer holds it.
        """
        outcome, rest = await self._scripts.run(
            "hand_back",
            [self._keys.rollout(rollout_id), self._keys.events(rollout_id), self._keys.queue],
            [rollout_id, entry, consumer],
        )
        if outcome == b"lost":
            raise LeaseLost(f"rollout {rollout_id} is held by {text(rest) or 'nobody'}, not by {consumer}")

    async def backlog(self) -> Backlog:
        """What waits for a controller now.

        Raises:
            RunMissing: the run has not begun.
        """
        try:
            groups: Any = await self._redis.xinfo_groups(self._keys.queue)
            given, pending = next(
                (group["last-delivered-id"], group["pending"]) for group in groups if text(group["name"]) == _GROUP
            )
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.xlen(self._keys.queue)
            pipeline.xrange(self._keys.queue, f"({text(given)}", "+", count=1)
            pipeline.time()
            length, oldest, (seconds, microseconds) = await pipeline.execute()
        except StopIteration:
            raise RunMissing(self._keys.run) from None
        except RedisError as error:
            self._raise(error)
        if not oldest:
            return Backlog(0, 0.0)
        since = int(text(oldest[0][0]).split("-")[0]) / 1000
        return Backlog(max(1, length - pending), max(0.0, seconds + microseconds / 1e6 - since))

    async def forget_idle(self, idle_seconds: float) -> int:
        """Forget controllers that hold nothing and have not taken for so long; returns how many.

        One that is alive is known again as soon as it takes.
        """
        return await self._scripts.run("forget_consumers", [self._keys.queue], [int(idle_seconds * 1000)])

    async def leave(self, consumer: str) -> None:
        """Forget a controller that holds nothing any more; one that still does stays."""
        try:
            for known in await self._redis.xinfo_consumers(self._keys.queue, _GROUP):
                if text(known["name"]) == consumer and known["pending"] == 0:
                    await self._redis.xgroup_delconsumer(self._keys.queue, _GROUP, consumer)
        except RedisError as error:
            self._raise(error)

    def _raise(self, error: RedisError) -> NoReturn:
        if isinstance(error, ResponseError) and str(error).startswith(("NOGROUP", "no such key")):
            raise RunMissing(self._keys.run) from error
        raise_as_log_error(error)


def _order(entry: str) -> tuple[int, int]:
    milliseconds, sequence = entry.split("-")
    return int(milliseconds), int(sequence)
