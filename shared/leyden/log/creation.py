"""Creating a rollout: its id is bound to the run first, and the rollout then made and queued by one script.

Invariants:
- whoever dies in between leaves an id that the next creation of it in the run takes up;
- a rollout is never made under the nonce of one that was freed: the creation claims the id anew.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

from pydantic_core import to_jsonable_python
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.encoding import encode
from leyden.log.errors import IdTaken, InputDiffers, LogUnavailable, RunMissing, TransitionRefused
from leyden.log.index import Index
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, storable, text
from leyden.schemas import NewRollout, State, data_id_of

_CLAIMS = 8
"""How often a creation may find that its rollout was freed under its hands."""


class Creation:
    """Creates the rollouts of one run."""

    def __init__(self, redis: Redis, scripts: Scripts, index: Index, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._index = index
        self._keys = k

    async def require_run(self) -> None:
        """Look, before any id is bound to it, whether the run takes rollouts; the script looks again.

        Raises:
            RunMissing: it has not begun, or has ended.
        """
        try:
            begun, ended = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.settings, ["begun", "ended"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if begun is None or ended is not None:
            raise RunMissing(self._keys.run)

    async def create(self, new: NewRollout, *, must_match: bool) -> str:
        """Create one rollout and return its id; what it may raise is what `Rollouts.create` may."""
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
                [rollout_id, location.nonce, digest, int(new.is_train), storable(data_id_of(new.input)), payload],
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


def _jsonable(value: Any) -> Any:
    # Tuples become lists, but NaN does not become null as it does in model_dump: encoding must see and refuse it.
    return to_jsonable_python(value, inf_nan_mode="constants")


def _digest(new: NewRollout, given_input: Any) -> str:
    """What a rollout is created with again: its input, mode and config, without what a later version may add to it."""
    what = [given_input, new.is_train, new.config.model_dump(mode="json", exclude_defaults=True)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
