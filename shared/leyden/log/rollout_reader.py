"""Rollouts as their log says they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.encoding import decode
from leyden.log.errors import AttemptFenced, RolloutFinished, RolloutMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import raise_as_log_error, text
from leyden.schemas import Rollout, RolloutConfig, RolloutMetadata, Spent, State, Status

_STATUS_FIELDS = ("state", "job", "attempt", "error", "version", "created_at", "updated_at", "hidden", "is_train")


class RolloutReader:
    """Reads the rollouts of one run."""

    def __init__(self, redis: Redis, k: RunKeys) -> None:
        self._redis = redis
        self._keys = k

    async def get(self, rollout_id: str) -> Rollout:
        """A rollout as its log says.

        Raises:
            RolloutMissing: there is none, or it was deleted.
        """
        (found,) = await self.read([rollout_id])
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

    async def admit(self, rollout_id: str, attempt: str, nonce: str) -> None:
        """Return if an agent with a token of that nonce may still ask anything about its attempt.

        Raises:
            RolloutMissing, RolloutFinished
            AttemptFenced: a later attempt has taken over, or the token is for an earlier rollout of this id.
        """
        try:
            state, stands, fence, hidden = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.rollout(rollout_id), ["state", "nonce", "fence", "hidden"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if state is None or hidden:
            raise RolloutMissing(rollout_id)
        if text(stands) != nonce:
            raise AttemptFenced(rollout_id, attempt, "")
        if fence and text(fence) != attempt:
            raise AttemptFenced(rollout_id, attempt, text(fence))
        if State(text(state)).terminal:
            raise RolloutFinished(rollout_id, text(state))

    async def spent(self, rollout_id: str) -> dict[str, Spent]:
        """What each attempt that has made calls has used of its budget."""
        try:
            fields: Any = await self._redis.hgetall(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.rollout(rollout_id)
            )
        except RedisError as error:
            raise_as_log_error(error)
        known = {text(name): text(value) for name, value in fields.items()}
        if "state" not in known or "hidden" in known:
            raise RolloutMissing(rollout_id)
        attempts = [name.partition(":")[2] for name in known if name.startswith(("calls:", "refused:"))]
        return {
            attempt: Spent(
                calls=int(known.get(f"calls:{attempt}", 0)),
                tokens=int(known.get(f"tokens:{attempt}", 0)),
                refused=known.get(f"refused:{attempt}"),
            )
            for attempt in sorted(attempts)
        }

    async def attempts_with_open_calls(self, rollout_id: str) -> set[str]:
        """The attempts that have calls open, on replicas that are alive or not."""
        try:
            fields: Any = await self._redis.hgetall(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.rollout(rollout_id)
            )
        except RedisError as error:
            raise_as_log_error(error)
        return {text(value).split(" ", 1)[1] for name, value in fields.items() if name.startswith(b"call:")}

    async def in_states(self, states: Iterable[State], limit: int, *, newest_first: bool = False) -> list[Rollout]:
        """Up to `limit` rollouts in those states: the oldest, oldest first, or the newest, newest first."""
        found: list[tuple[float, str]] = []
        try:
            for state in set(states):
                rows: Any = await self._redis.zrange(
                    self._keys.in_state(state), 0, max(0, limit - 1), desc=newest_first, withscores=True
                )
                found += [(score, text(member)) for member, score in rows]
        except RedisError as error:
            raise_as_log_error(error)
        ids = [rollout_id for _, rollout_id in sorted(found, reverse=newest_first)[:limit]]
        return [rollout for rollout in await self.read(ids) if rollout is not None]

    async def counts(self) -> dict[State, int]:
        """How many rollouts are in each state."""
        try:
            return {state: await self._redis.zcard(self._keys.in_state(state)) for state in State}
        except RedisError as error:
            raise_as_log_error(error)

    async def read(self, ids: Sequence[str]) -> list[Rollout | None]:
        """Rollouts by id, in that order; None for one that is not there or was deleted."""
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
