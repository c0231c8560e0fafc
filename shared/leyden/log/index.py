"""Which run a rollout id belongs to, and the nonce of its creation.

Invariants:
- an id is bound to one run and one nonce from before its rollout is created until after it is freed;
- the nonce of a freed rollout is never that of another, whoever dies or is held up between the steps: what is freed and
  not yet released is on record in its run, and is released by whoever comes next;
- an id that was bound for a creation which never came is noted in its run, and released after a while.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log import keys
from leyden.log.errors import RolloutMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Location:
    """Where a rollout is, and which creation of it."""

    run: str
    nonce: str


class Index:
    """Finds rollouts by id alone."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis = redis
        self._scripts = scripts

    async def locate(self, rollout_id: str) -> Location:
        """The run and nonce of a rollout id.

        Raises:
            RolloutMissing: the id is not bound.
        """
        try:
            run, nonce = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                keys.index(rollout_id), ["run", "nonce"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if run is None or nonce is None:
            raise RolloutMissing(rollout_id)
        return Location(text(run), text(nonce))

    async def claim(self, rollout_id: str, run: str) -> Location:
        """Bind an id to a run, or find what it is bound to."""
        bound_run, nonce = await self._scripts.run("claim_id", [keys.index(rollout_id)], [run, uuid.uuid4().hex])
        return Location(text(bound_run), text(nonce))

    async def release(self, k: RunKeys, rollout_id: str, nonce: str) -> None:
        """Unbind an id whose rollout of that nonce was freed; asking again changes nothing."""
        await self._scripts.run("release_id", [keys.index(rollout_id)], [nonce])
        await self._scripts.run("note_released", [k.freed], [rollout_id, nonce])

    async def release_abandoned(self, k: RunKeys, older_than_seconds: float) -> int:
        """Unbind ids that were noted longer ago than that for a creation which never came; returns how many."""
        released = 0
        try:
            seconds, _ = await self._redis.time()
            until = seconds - older_than_seconds
            noted: Any = await self._redis.zrangebyscore(k.claims, "-inf", until, start=0, num=_PAGE)
        except RedisError as error:
            raise_as_log_error(error)
        for rollout_id in map(text, noted):
            try:
                location = await self.locate(rollout_id)
                nonce = location.nonce if location.run == k.run else ""
            except RolloutMissing:
                nonce = ""
            (outcome,) = await self._scripts.run(
                "abandon_claim", [k.rollout(rollout_id), k.claims, k.freed], [rollout_id, nonce, until]
            )
            released += outcome == b"abandoned"
        if released:
            await self.release_freed(k)
        return released

    async def release_freed(self, k: RunKeys) -> int:
        """Unbind the ids of all rollouts of a run that were freed; returns how many."""
        released = 0
        while True:
            try:
                pairs: Any = await self._redis.zrangebyscore(k.freed, 0, 0, start=0, num=_PAGE)
            except RedisError as error:
                raise_as_log_error(error)
            await asyncio.gather(*(self.release(k, *text(pair).split(" ")) for pair in pairs))
            released += len(pairs)
            if len(pairs) < _PAGE:
                return released
