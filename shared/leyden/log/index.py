"""Which run a rollout id belongs to, and the nonce of its creation.

Invariant: an id is bound to one run and one nonce from before its rollout is created until after it is freed.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log import keys
from leyden.log.errors import RolloutMissing
from leyden.log.scripts import Scripts, raise_as_log_error, text


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

    async def release(self, rollout_id: str, nonce: str) -> None:
        """Unbind an id whose rollout of that nonce is gone; asking again changes nothing."""
        await self._scripts.run("release_id", [keys.index(rollout_id)], [nonce])
