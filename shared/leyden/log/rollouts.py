"""The life of a rollout in the log.

Invariants, each held by one script:
- a rollout is created once, however often it is asked for;
- it ends once, and its completion is published in the same step;
- `completions` has entry ids 1-0, 2-0, 3-0, … with no gap, in the order in which rollouts ended;
- a rollout that has ended, or that a foreign controller has taken, has no entry in the queue;
- a later attempt fences earlier ones and loses their open calls;
- an id whose rollout was freed may be used again, never with the nonce that it had.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.creation import Creation
from leyden.log.errors import LeaseLost, RolloutFinished, RolloutMissing, TransitionRefused
from leyden.log.fold import rebuild
from leyden.log.index import Index
from leyden.log.keys import RunKeys
from leyden.log.memory import Memory
from leyden.log.replicas import REPLICA_TTL_SECONDS
from leyden.log.rollout_reader import RolloutReader
from leyden.log.scripts import Scripts, raise_as_log_error, storable, text
from leyden.schemas import NewRollout, Rollout, State, StatusPatch

_FINAL = (State.SUCCEEDED, State.FAILED)
_PATCHED = {"last_attempt_id": "attempt", "k8s_job_name": "job", "error_message": "error"}
"""The fields of a status patch, by their names in the rollout's hash."""


_ERROR_CHARACTERS = 32_768
"""How much of an error message is kept: its beginning, which says what, and its end, which says why."""


class Rollouts(RolloutReader):
    """Writes and reads the rollouts of one run."""

    def __init__(self, redis: Redis, scripts: Scripts, index: Index, memory: Memory, k: RunKeys) -> None:
        super().__init__(redis, k)
        self._scripts = scripts
        self._index = index
        self._creation = Creation(redis, scripts, index, memory, k)

    async def create(self, new: NewRollout, *, must_match: bool = False) -> Rollout:
        """Create a rollout and queue it, or return the one that stands under its id, untouched.

        Raises:
            InputDiffers: `must_match`, and the stored input, mode or config is another.
            IdTaken: the id belongs to another run.
            RunMissing: the run has not begun, or has ended.
            TransitionRefused: a rollout of this id was deleted and is still being read.
            PayloadInvalid: the input holds what is not JSON, or a number that is not finite.
            MemoryShort: the server is so full that new rollouts are refused.
            LogFull, LogUnavailable: nothing is known to be created; asking again is safe.
        """
        (made,) = await self.create_many([new], must_match=must_match)
        return made

    async def create_many(self, new: Iterable[NewRollout], *, must_match: bool = False) -> list[Rollout]:
        """Create rollouts as `create` does, queued in order; if one raises, others may exist: asking again is safe."""
        ids = await self._creation.create(new, must_match=must_match)
        found = await self.read(ids)
        for rollout_id, rollout in zip(ids, found, strict=True):
            if rollout is None:
                raise RolloutMissing(rollout_id)
        return [rollout for rollout in found if rollout is not None]

    async def start(self, rollout_id: str, attempt: str, *, entry: str, consumer: str, job_name: str = "") -> Rollout:
        """Begin an attempt as the controller that holds the queue entry; asking again changes nothing.

        Raises:
            LeaseLost: another controller holds the rollout.
            RolloutFinished, RolloutMissing
        """
        outcome, *rest = await self._scripts.run(
            "start_rollout",
            self._living_keys(rollout_id),
            [rollout_id, attempt, entry, consumer, job_name, REPLICA_TTL_SECONDS],
        )
        match outcome:
            case b"missing":
                raise RolloutMissing(rollout_id)
            case b"finished":
                raise RolloutFinished(rollout_id, text(rest[0]))
            case b"lost":
                raise LeaseLost(f"rollout {rollout_id} is held by {text(rest[0]) or 'nobody'}, not by {consumer}")
        return await self.get(rollout_id)

    async def patch(self, rollout_id: str, patch: StatusPatch) -> Rollout:
        """Change a rollout's status as a foreign controller or an operator.

        A field that is set to None is cleared; an empty patch changes nothing.

        Raises:
            TransitionRefused: not one of queuing → running or failed, running → succeeded or failed.
            RolloutMissing
        """
        changes = patch.model_dump(mode="json", exclude_unset=True)
        if not changes:
            return await self.get(rollout_id)
        wanted = changes.pop("state", "")
        error = changes.pop("error_message", None) if wanted in _FINAL else None
        fields = [each for name, value in changes.items() for each in (_PATCHED[name], _bounded(storable(value or "")))]
        token = uuid.uuid4().hex
        if wanted in _FINAL:
            outcome, *rest = await self._end(rollout_id, State(wanted), error or "", "", "", token, fields)
        elif wanted in (State.QUEUING, None):
            raise TransitionRefused(rollout_id, (await self.get(rollout_id)).status.state, str(wanted))
        else:
            outcome, *rest = await self._scripts.run(
                "patch_rollout",
                self._living_keys(rollout_id),
                [rollout_id, token, wanted, REPLICA_TTL_SECONDS, *fields],
            )
        match outcome:
            case b"missing":
                raise RolloutMissing(rollout_id)
            case b"refused":
                raise TransitionRefused(rollout_id, text(rest[0]), wanted or "patched")
        return await self.get(rollout_id)

    async def end(self, rollout_id: str, state: State, *, error: str = "", entry: str = "", consumer: str = "") -> int:
        """End a rollout and return its place in completion order, counting from 1.

        Ending it again in the same state changes nothing and returns the same number, so a caller that lost the
        answer may ask again. With `entry` and `consumer`, only the controller that holds the rollout may end it.

        Raises:
            RolloutMissing: there is no such rollout.
            RolloutFinished: it ended in the other state.
            LeaseLost: another controller holds the rollout.
        """
        outcome, *rest = await self._end(rollout_id, state, error, entry, consumer, "", [])
        match outcome:
            case b"ended":
                return rest[0]
            case b"already" if text(rest[0]) == state:
                return rest[1]
            case b"already":
                raise RolloutFinished(rollout_id, text(rest[0]))
            case b"lost":
                raise LeaseLost(f"rollout {rollout_id} is held by {text(rest[0]) or 'nobody'}, not by {consumer}")
            case _:
                raise RolloutMissing(rollout_id)

    async def delete(self, rollout_id: str) -> bool:
        """Hide a rollout at once and free it when no reader needs it; True if there was one."""
        k = self._keys
        outcome, *rest = await self._scripts.run(
            "delete_rollout",
            [
                k.rollout(rollout_id),
                k.events(rollout_id),
                k.queue,
                k.completions,
                k.settings,
                k.control,
                k.replicas,
                k.freed,
                *k.states,
            ],
            [rollout_id, REPLICA_TTL_SECONDS],
        )
        if outcome == b"freed":
            await self._index.release(k, rollout_id, text(rest[0]))
        return outcome != b"missing"

    async def retire(self, older_than_seconds: float, limit: int = 1000) -> int:
        """Delete up to `limit` finished rollouts created longer ago than that; returns how many."""
        old: list[bytes] = []
        try:
            seconds, microseconds = await self._redis.time()
            until = seconds + microseconds / 1e6 - older_than_seconds
            for state in (State.SUCCEEDED, State.FAILED):
                members: Any = await self._redis.zrangebyscore(
                    self._keys.in_state(state), "-inf", until, start=0, num=limit
                )
                old += members
        except RedisError as error:
            raise_as_log_error(error)
        for member in old[:limit]:
            await self.delete(text(member))
        await self._index.release_freed(self._keys)
        return len(old[:limit])

    async def release_abandoned(self, older_than_seconds: float) -> int:
        """Release ids that were noted for a creation longer ago than that which never came; returns how many."""
        return await self._index.release_abandoned(self._keys, older_than_seconds)

    async def rebuild(self, rollout_id: str) -> None:
        """Make what is kept of a rollout follow from its stream again, as if something had damaged it.

        Raises:
            RolloutMissing: it has no stream.
        """
        await rebuild(self._redis, self._scripts, self._keys, rollout_id)

    def _living_keys(self, rollout_id: str) -> list[str]:
        """The keys of the scripts that change a rollout which goes on."""
        k = self._keys
        return [
            k.rollout(rollout_id),
            k.events(rollout_id),
            k.queue,
            k.settings,
            k.control,
            k.replicas,
            k.in_state(State.QUEUING),
            k.in_state(State.RUNNING),
        ]

    async def _end(
        self,
        rollout_id: str,
        state: State,
        error: str,
        entry: str,
        consumer: str,
        token: str,
        fields: Sequence[str],
    ) -> list:
        if not state.terminal:
            raise ValueError(f"rollout {rollout_id} can't end as {state}: only succeeded and failed are final")
        k = self._keys
        return await self._scripts.run(
            "end_rollout",
            [
                k.rollout(rollout_id),
                k.events(rollout_id),
                k.queue,
                k.completions,
                k.settings,
                k.control,
                k.replicas,
                *k.states,
            ],
            [rollout_id, state, _bounded(storable(error)), entry, consumer, token, REPLICA_TTL_SECONDS, *fields],
        )


def _bounded(message: str) -> str:
    left_out = len(message) - _ERROR_CHARACTERS
    if left_out <= 0:
        return message
    head, tail = message[: _ERROR_CHARACTERS // 4], message[-3 * _ERROR_CHARACTERS // 4 :]
    return f"{head}\n… {left_out} characters left out …\n{tail}"
