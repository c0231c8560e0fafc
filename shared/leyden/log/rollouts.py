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

import asyncio
import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_jsonable_python
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.encoding import decode, encode
from leyden.log.errors import (
    IdTaken,
    InputDiffers,
    LeaseLost,
    LogUnavailable,
    RolloutFinished,
    RolloutMissing,
    RunMissing,
    TransitionRefused,
)
from leyden.log.fold import rebuild
from leyden.log.index import Index
from leyden.log.keys import RunKeys
from leyden.log.replicas import REPLICA_TTL_SECONDS
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import (
    NewRollout,
    Rollout,
    RolloutConfig,
    RolloutMetadata,
    State,
    Status,
    StatusPatch,
    data_id_of,
)

_STATUS_FIELDS = ("state", "job", "attempt", "error", "version", "created_at", "updated_at", "hidden", "is_train")
_CLAIMS = 8
"""How often a create may find that its rollout was freed under its hands."""


class Rollouts:
    """Writes and reads the rollouts of one run."""

    def __init__(self, redis: Redis, scripts: Scripts, index: Index, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._index = index
        self._keys = k

    async def create(self, new: NewRollout, *, must_match: bool = False) -> Rollout:
        """Create a rollout and queue it, or return the one that stands under its id, untouched.

        Raises:
            InputDiffers: `must_match`, and the stored input, mode or config is another.
            IdTaken: the id belongs to another run.
            RunMissing: the run has not begun, or has ended.
            TransitionRefused: a rollout of this id was deleted and is still being read.
            PayloadInvalid: the input holds what is not JSON, or a number that is not finite.
            LogFull, LogUnavailable: nothing is known to be created; asking again is safe.
        """
        (made,) = await self.create_many([new], must_match=must_match)
        return made

    async def create_many(self, new: Iterable[NewRollout], *, must_match: bool = False) -> list[Rollout]:
        """Create rollouts as `create` does, queued in order; if one raises, others may exist: asking again is safe."""
        # Before any id is bound to a run that isn't there; the script looks again.
        await self._require_run()
        made = await asyncio.gather(*(self._create(each, must_match) for each in new), return_exceptions=True)
        ids: list[str] = []
        for outcome in made:
            if isinstance(outcome, BaseException):
                raise outcome
            ids.append(outcome)
        found = await self._read(ids)
        for rollout_id, rollout in zip(ids, found, strict=True):
            if rollout is None:
                raise RolloutMissing(rollout_id)
        return [rollout for rollout in found if rollout is not None]

    async def _require_run(self) -> None:
        try:
            begun, ended = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.settings, ["begun", "ended"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if begun is None or ended is not None:
            raise RunMissing(self._keys.run)

    async def _create(self, new: NewRollout, must_match: bool) -> str:
        k = self._keys
        rollout_id = new.rollout_id or uuid.uuid4().hex
        body = _jsonable(new.model_dump(exclude={"rollout_id"}))
        payload = encode(body)
        digest = _digest(new, body["input"])
        for _ in range(_CLAIMS):
            location = await self._index.claim(rollout_id, k.run)
            if location.run != k.run:
                raise IdTaken(rollout_id, location.run)
            outcome, *rest = await self._scripts.run(
                "create_rollout",
                [k.rollout(rollout_id), k.events(rollout_id), k.queue, k.in_state(State.QUEUING), k.settings, k.freed],
                [rollout_id, location.nonce, digest, int(new.is_train), _shown(data_id_of(new.input)), payload],
            )
            match outcome:
                case b"stale":
                    await self._index.release(k, rollout_id, location.nonce)
                    continue
                case b"no run" | b"run ended":
                    raise RunMissing(k.run)
                case b"hidden":
                    raise TransitionRefused(rollout_id, "deleted, not yet read by all readers", "created")
                case b"exists" if must_match and text(rest[0]) != digest:
                    raise InputDiffers(rollout_id)
            return rollout_id
        raise LogUnavailable(f"rollout {rollout_id} was created and freed {_CLAIMS} times while it was to be created")

    async def get(self, rollout_id: str) -> Rollout:
        """A rollout as its log says.

        Raises:
            RolloutMissing: there is none, or it was deleted.
        """
        (found,) = await self._read([rollout_id])
        if found is None:
            raise RolloutMissing(rollout_id)
        return found

    async def attempts(self, rollout_id: str) -> list[str]:
        """The attempts that have events, by first event."""
        try:
            state, hidden, attempts = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.rollout(rollout_id), ["state", "hidden", "attempts"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if state is None or hidden:
            raise RolloutMissing(rollout_id)
        return text(attempts).strip("\n").split("\n") if attempts else []

    async def attempts_with_open_calls(self, rollout_id: str) -> set[str]:
        """The attempts that have calls open, on replicas that are alive or not."""
        try:
            fields: Any = await self._redis.hgetall(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.rollout(rollout_id)
            )
        except RedisError as error:
            raise_as_log_error(error)
        return {text(value).split()[1] for name, value in fields.items() if name.startswith(b"call:")}

    async def in_states(self, states: Iterable[State], limit: int) -> list[Rollout]:
        """Up to `limit` rollouts in those states, oldest first."""
        found: list[tuple[float, str]] = []
        try:
            for state in set(states):
                rows: Any = await self._redis.zrange(self._keys.in_state(state), 0, max(0, limit - 1), withscores=True)
                found += [(score, text(member)) for member, score in rows]
        except RedisError as error:
            raise_as_log_error(error)
        ids = [rollout_id for _, rollout_id in sorted(found)[:limit]]
        return [rollout for rollout in await self._read(ids) if rollout is not None]

    async def counts(self) -> dict[State, int]:
        """How many rollouts are in each state."""
        try:
            return {state: await self._redis.zcard(self._keys.in_state(state)) for state in State}
        except RedisError as error:
            raise_as_log_error(error)

    async def start(self, rollout_id: str, attempt: str, *, entry: str, consumer: str, job_name: str = "") -> Rollout:
        """Begin an attempt as the controller that holds the queue entry; asking again changes nothing.

        Raises:
            LeaseLost: another controller holds the rollout.
            RolloutFinished, RolloutMissing
        """
        k = self._keys
        outcome, *rest = await self._scripts.run(
            "start_rollout",
            [
                k.rollout(rollout_id),
                k.events(rollout_id),
                k.queue,
                k.settings,
                k.control,
                k.replicas,
                k.in_state(State.QUEUING),
                k.in_state(State.RUNNING),
            ],
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
        fields = [each for name, value in changes.items() for each in (_PATCHED[name], _shown(value or ""))]
        token = uuid.uuid4().hex
        k = self._keys
        if wanted in _FINAL:
            outcome, *rest = await self._end(rollout_id, State(wanted), error or "", "", "", token, fields)
        elif wanted in (State.QUEUING, None):
            raise TransitionRefused(rollout_id, (await self.get(rollout_id)).status.state, str(wanted))
        else:
            outcome, *rest = await self._scripts.run(
                "patch_rollout",
                [
                    k.rollout(rollout_id),
                    k.events(rollout_id),
                    k.queue,
                    k.settings,
                    k.control,
                    k.replicas,
                    k.in_state(State.QUEUING),
                    k.in_state(State.RUNNING),
                ],
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

    async def rebuild(self, rollout_id: str) -> None:
        """Make what is kept of a rollout follow from its stream again, as if something had damaged it.

        Raises:
            RolloutMissing: it has no stream.
        """
        await rebuild(self._redis, self._scripts, self._keys, rollout_id)

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
            [rollout_id, state, _shown(error), entry, consumer, token, REPLICA_TTL_SECONDS, *fields],
        )

    async def _read(self, ids: Sequence[str]) -> list[Rollout | None]:
        if not ids:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for rollout_id in ids:
            pipeline.hmget(self._keys.rollout(rollout_id), list(_STATUS_FIELDS))
            pipeline.xrange(self._keys.events(rollout_id), count=1)
        try:
            replies = await pipeline.execute()
        except RedisError as error:
            raise_as_log_error(error)
        return [
            _rollout(rollout_id, *pair)
            for rollout_id, pair in zip(ids, zip(replies[::2], replies[1::2], strict=True), strict=True)
        ]


_FINAL = (State.SUCCEEDED, State.FAILED)
_PATCHED = {"last_attempt_id": "attempt", "k8s_job_name": "job", "error_message": "error"}
"""The fields of a status patch, by their names in the rollout's hash."""


def _jsonable(value: Any) -> Any:
    # Tuples become lists, but NaN does not become null as it does in model_dump: encoding must see and refuse it.
    return to_jsonable_python(value, inf_nan_mode="constants")


def _digest(new: NewRollout, given_input: Any) -> str:
    """What a rollout is created with again: its input, mode and config, without what a later version may add to it."""
    what = [given_input, new.is_train, new.config.model_dump(mode="json", exclude_defaults=True)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _shown(words: str) -> str:
    """Words from outside as they can be kept: half of a surrogate pair becomes an escape."""
    return words.encode(errors="backslashreplace").decode()


def _rollout(rollout_id: str, status: list[bytes | None], first: list) -> Rollout | None:
    state, job, attempt, error, version, created_at, updated_at, hidden, is_train = status
    if state is None or hidden or not first:
        return None
    body = decode(first[0][1][b"data"])
    return Rollout(
        rollout_id=rollout_id,
        input=body["input"],
        is_train=is_train == b"1",
        config=RolloutConfig.model_validate(body["config"]),
        metadata=RolloutMetadata.model_validate(body["metadata"]),
        status=Status(
            state=State(text(state)),
            k8s_job_name=text(job) or None,
            last_attempt_id=text(attempt) or None,
            error_message=text(error) or None,
            version=int(text(version)),
            created_at=float(text(created_at)),
            updated_at=float(text(updated_at)),
        ),
    )
