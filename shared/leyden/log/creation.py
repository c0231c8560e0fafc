"""Creating rollouts: their ids are noted and bound to the run, and each rollout is then made and queued by one script.

Invariants:
- whoever dies in between leaves ids that the next creation of them in the run takes up, and that are released if none
  comes;
- a rollout is never made under the nonce of one that was freed: the creation claims the id anew;
- what exists is found, however full the server is; what is new is refused before the server is full.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.encoding import encode
from leyden.log.errors import IdTaken, InputDiffers, LogFull, LogUnavailable, RunMissing, TransitionRefused
from leyden.log.index import Index
from leyden.log.keys import RunKeys
from leyden.log.memory import Memory
from leyden.log.scripts import Argument, Scripts, raise_as_log_error, storable, text
from leyden.schemas import BUDGETS, NewRollout, RolloutConfig, State, data_id_of

_CLAIMS = 8
"""How often a creation may find that its rollout was freed under its hands."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A rollout that is to be created."""

    rollout_id: str
    digest: str
    is_train: bool
    data_id: str
    payload: bytes
    limits: Sequence[Argument]
    """Field, value, … of the limits that the rollout sets for itself."""

    @classmethod
    def of(cls, new: NewRollout) -> _Draft:
        body = _jsonable(new.model_dump(exclude={"rollout_id"}))
        return cls(
            rollout_id=new.rollout_id or uuid.uuid4().hex,
            digest=_digest(new, body["input"]),
            is_train=new.is_train,
            data_id=storable(data_id_of(new.input)),
            payload=encode(body),
            limits=_limits(new.config),
        )


class Creation:
    """Creates the rollouts of one run."""

    def __init__(self, redis: Redis, scripts: Scripts, index: Index, memory: Memory, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._index = index
        self._memory = memory
        self._keys = k

    async def create(self, new: Iterable[NewRollout], *, must_match: bool) -> list[str]:
        """Create rollouts, queued in order, and return their ids; what it may raise is what `Rollouts.create` may."""
        drafts = [_Draft.of(each) for each in new]
        try:
            return await self._create_all(drafts, must_match)
        except LogFull:
            if not await self._all_exist(drafts, must_match):
                raise
            return [draft.rollout_id for draft in drafts]

    async def _create_all(self, drafts: Sequence[_Draft], must_match: bool) -> list[str]:
        room = await self._memory.has_room(sum(len(draft.payload) for draft in drafts))
        outcome, *_ = await self._scripts.run(
            "begin_creation", [self._keys.settings, self._keys.claims], [draft.rollout_id for draft in drafts]
        )
        if outcome == b"no run":
            raise RunMissing(self._keys.run)
        made = await asyncio.gather(
            *(self._create(draft, must_match=must_match, room=room) for draft in drafts), return_exceptions=True
        )
        ids: list[str] = []
        for each in made:
            if isinstance(each, BaseException):
                raise each
            ids.append(each)
        return ids

    async def _create(self, draft: _Draft, *, must_match: bool, room: bool) -> str:
        k, rollout_id = self._keys, draft.rollout_id
        for _ in range(_CLAIMS):
            location = await self._index.claim(rollout_id, k.run)
            if location.run != k.run:
                raise IdTaken(rollout_id, location.run)
            outcome, *rest = await self._scripts.run(
                "create_rollout",
                [
                    k.rollout(rollout_id),
                    k.events(rollout_id),
                    k.queue,
                    k.in_state(State.QUEUING),
                    k.settings,
                    k.freed,
                    k.claims,
                ],
                [
                    rollout_id,
                    location.nonce,
                    draft.digest,
                    int(draft.is_train),
                    draft.data_id,
                    draft.payload,
                    int(room),
                    *draft.limits,
                ],
            )
            match outcome:
                case b"stale":
                    await self._index.release(k, rollout_id, location.nonce)
                    continue
                case b"no run" | b"run ended":
                    raise RunMissing(k.run)
                case b"no room":
                    raise self._memory.short()
                case b"hidden":
                    raise TransitionRefused(rollout_id, "deleted, not yet read by all readers", "created")
                case b"exists" if must_match and text(rest[0]) != draft.digest:
                    raise InputDiffers(rollout_id)
            return rollout_id
        raise LogUnavailable(f"rollout {rollout_id} was created and freed {_CLAIMS} times while it was to be created")

    async def _all_exist(self, drafts: Sequence[_Draft], must_match: bool) -> bool:
        """Whether there is nothing to create: then a full server is no hindrance."""
        pipeline = self._redis.pipeline(transaction=False)
        for draft in drafts:
            pipeline.hmget(self._keys.rollout(draft.rollout_id), ["digest", "hidden"])
        try:
            found = await pipeline.execute()
        except RedisError as error:
            raise_as_log_error(error)
        for draft, (digest, hidden) in zip(drafts, found, strict=True):
            if digest is None or hidden:
                return False
            if must_match and text(digest) != draft.digest:
                raise InputDiffers(draft.rollout_id)
        return True


def _jsonable(value: Any) -> Any:
    # Tuples become lists, but NaN does not become null as it does in model_dump: encoding must see and refuse it.
    return to_jsonable_python(value, inf_nan_mode="constants")


def _digest(new: NewRollout, given_input: Any) -> str:
    """What a rollout is created with again: its input, mode and config, without what a later version may add to it."""
    what = [given_input, new.is_train, new.config.model_dump(mode="json", exclude_defaults=True)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _limits(config: RolloutConfig) -> list[Argument]:
    return [each for name in BUDGETS if (limit := getattr(config, name)) is not None for each in (name, limit)]
