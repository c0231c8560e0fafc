"""What services must react to at once: pauses, new models and rules, rollouts cancelled under a running agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

from redis.asyncio import Redis

from leyden.log.blocking import last_id, read_stream
from leyden.log.keys import RunKeys
from leyden.log.scripts import text


class Signal(StrEnum):
    """What has happened."""

    PAUSED = "paused"
    RESUMED = "resumed"
    DRAINED = "drained"
    MODELS = "models"
    SETTINGS = "settings"
    CANCELLED = "cancelled"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """One signal; `rollout_id` only with `CANCELLED` and `FENCED`."""

    entry: str
    kind: Signal
    rollout_id: str | None = None


class Control:
    """The control stream of one run. It is short: who was away for long reads the state itself."""

    def __init__(self, redis: Redis, blocking: Redis, k: RunKeys) -> None:
        self._redis = redis
        self._blocking = blocking
        self._stream = k.control

    async def last(self) -> str:
        """The place to follow from, for a caller that reads the state after this."""
        return await last_id(self._redis, self._stream)

    async def wait(self, after: str, timeout_seconds: float) -> list[ControlEntry]:
        """The signals past `after`; waits for the first up to `timeout_seconds`, and returns none if none came."""
        rows = await read_stream(self._blocking, self._stream, after, seconds=timeout_seconds)
        return [
            ControlEntry(entry, Signal(text(fields[b"kind"])), text(fields.get(b"id")) or None)
            for entry, fields in rows
            if fields
        ]

    async def follow(self, after: str | None = None) -> AsyncIterator[ControlEntry]:
        """Every signal past `after`, by default from now on; never stops by itself."""
        place = after or await self.last()
        while True:
            for signal in await self.wait(place, timeout_seconds=20):
                place = signal.entry
                yield signal
