"""How much of its memory the server uses, and whether there is room for new rollouts.

Invariants:
- what was looked at is at most a second old, so that looking costs nothing however often it is asked;
- a server without a limit has room for everything.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.errors import MemoryShort
from leyden.log.scripts import raise_as_log_error

ROLLOUTS_MEMORY_SHARE = 0.9
"""The part of the server's memory limit above which new rollouts are refused: the rest is for those that run."""

_MAX_AGE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that the server's data takes, and how many it may; a limit of 0 is none."""

    used_bytes: int
    limit_bytes: int

    @property
    def full(self) -> bool:
        """Whether the server takes no more."""
        return 0 < self.limit_bytes <= self.used_bytes

    def __str__(self) -> str:
        limit = f" of maxmemory {self.limit_bytes / 2**20:.1f} MiB" if self.limit_bytes else ", no maxmemory"
        return f"{self.used_bytes / 2**20:.1f} MiB{limit}"


class Memory:
    """The memory of one server."""

    def __init__(self, redis: Redis, rollouts_share: float = ROLLOUTS_MEMORY_SHARE) -> None:
        self._redis = redis
        self._share = rollouts_share
        self._use = MemoryUse(0, 0)
        self._looked_at = -_MAX_AGE_SECONDS

    async def use(self) -> MemoryUse:
        """What the server uses, as of the last second.

        Raises:
            LogUnavailable
        """
        if time.monotonic() - self._looked_at > _MAX_AGE_SECONDS:
            try:
                about: dict[str, Any] = await self._redis.info("memory")
            except RedisError as error:
                raise_as_log_error(error)
            self._use = MemoryUse(int(about["used_memory"]), int(about.get("maxmemory", 0)))
            self._looked_at = time.monotonic()
        return self._use

    async def has_room(self, more_bytes: int) -> bool:
        """Whether new rollouts of that many bytes may be created.

        Raises:
            LogUnavailable
        """
        use = await self.use()
        return not use.limit_bytes or use.used_bytes + more_bytes <= self._share * use.limit_bytes

    def short(self) -> MemoryShort:
        """The error of a creation for which there was no room."""
        return MemoryShort(self._use.used_bytes, self._use.limit_bytes, self._share)
