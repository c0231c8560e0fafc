"""What the trainer decided and did, in order.

Invariants:
- a step id is recorded once: recording it again changes nothing;
- only the holder of the trainer's lease records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.blocking import read_stream
from leyden.log.encoding import decode, encode
from leyden.log.errors import LeaseLost
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One record; `epoch` is the lease under which it was written."""

    entry: str
    kind: str
    step_id: str
    epoch: int
    data: dict[str, Any]


class Steps:
    """The trainer's stream of one run."""

    def __init__(self, redis: Redis, blocking: Redis, scripts: Scripts, k: RunKeys) -> None:
        self._redis = redis
        self._blocking = blocking
        self._scripts = scripts
        self._keys = k

    async def append(self, kind: str, data: dict[str, Any], *, epoch: int, step_id: str) -> str:
        """Record a step once and return its entry id.

        Raises:
            LeaseLost: `epoch` is not the current lease's.
        """
        outcome, rest = await self._scripts.run(
            "append_step",
            [self._keys.steps, self._keys.step_ids, self._keys.settings],
            [kind, step_id, epoch, encode(data)],
        )
        if outcome == b"lost":
            raise LeaseLost(f"run {self._keys.run}: the trainer of epoch {epoch} was replaced by {text(rest)}")
        return text(rest)

    async def read(self) -> list[StepEntry]:
        """Everything recorded, in order."""
        try:
            rows: Any = await self._redis.xrange(self._keys.steps)
        except RedisError as error:
            raise_as_log_error(error)
        return [_step(text(entry), fields) for entry, fields in rows]

    async def follow(self, after: str = "0-0") -> AsyncIterator[StepEntry]:
        """Everything recorded past `after`, and then as it comes; never stops by itself."""
        while True:
            for entry, fields in await read_stream(self._blocking, self._keys.steps, after):
                after = entry
                yield _step(entry, fields)


def _step(entry: str, fields: dict[bytes, bytes]) -> StepEntry:
    return StepEntry(
        entry, text(fields[b"kind"]), text(fields[b"step_id"]), int(fields[b"epoch"]), decode(fields[b"data"])
    )
