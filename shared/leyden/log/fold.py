"""A rollout's hash, as it follows from its stream.

Invariant: but for its open and held calls and their number, the hash always equals the fold of the stream; every script
that changes one appends to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.errors import LogUnavailable, RolloutMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import BUDGETS

_TRIES = 8

Fields = Mapping[str, str]
State = dict[str, str]


def fold(rows: Iterable[tuple[bytes | str, Mapping[bytes, bytes]]]) -> State:
    """The fields of a rollout's hash after the entries of its stream; a payload is not looked at."""
    state: State = {}
    for entry, raw in rows:
        fields = {text(name): text(value) for name, value in raw.items() if name != b"data"}
        _FOLDS[fields["kind"]](state, fields, text(entry))
    return state


async def rebuild(redis: Redis, scripts: Scripts, k: RunKeys, rollout_id: str) -> None:
    """Put in place of a rollout's hash, and in the sets of rollouts by state, what its stream says.

    Calls that the hash still knows as open stay open.

    Raises:
        RolloutMissing: it has no stream.
        LogUnavailable: the stream grew under our hands, again and again.
    """
    for _ in range(_TRIES):
        try:
            rows: Any = await redis.xrange(k.events(rollout_id))
        except RedisError as error:
            raise_as_log_error(error)
        if not rows:
            raise RolloutMissing(rollout_id)
        state = fold(rows)
        (outcome,) = await scripts.run(
            "rebuild_rollout",
            [k.rollout(rollout_id), k.events(rollout_id), *k.states],
            [rollout_id, rows[-1][0], *(each for pair in state.items() for each in pair)],
        )
        if outcome == b"rebuilt":
            return
    raise LogUnavailable(f"rollout {rollout_id} changed {_TRIES} times while it was to be rebuilt")


def _created(state: State, fields: Fields, _entry: str) -> None:
    state.update({name: fields[name] for name in ("nonce", "digest", "is_train", "data_id")})
    state.update({name: fields[name] for name in BUDGETS if name in fields})
    state.update(state="queuing", version="1", created_at=fields["at"], updated_at=fields["at"], entry=fields["queued"])


def _started(state: State, fields: Fields, _entry: str) -> None:
    state.update(state="running", attempt=fields["attempt"], fence=fields["attempt"])
    if fields["job"]:
        state["job"] = fields["job"]
    _changed(state, fields)


def _patched(state: State, fields: Fields, _entry: str) -> None:
    state.update({name: fields[name] for name in ("attempt", "job", "error") if name in fields})
    if fields.get("attempt"):
        state["fence"] = fields["attempt"]
    if fields["state"]:
        state["state"] = fields["state"]
        state.pop("entry", None)
    state[f"patch:{fields['token']}"] = "1"
    _changed(state, fields)


def _handed_back(state: State, fields: Fields, _entry: str) -> None:
    state.update(entry=fields["queued"], handed=fields["from"])


def _ended(state: State, fields: Fields, _entry: str) -> None:
    state.update({name: fields[name] for name in ("state", "ordinal")})
    state.update({name: fields[name] for name in ("attempt", "job") if name in fields})
    if fields["error"]:
        state["error"] = fields["error"]
    if fields["token"]:
        state[f"patch:{fields['token']}"] = "1"
    state.pop("entry", None)
    _changed(state, fields)


def _deleted(state: State, fields: Fields, _entry: str) -> None:
    state.update(hidden="1", updated_at=fields["at"])
    state.pop("entry", None)
    if fields["ordinal"]:
        state.update(state="failed", ordinal=fields["ordinal"], error="deleted")


def _event(state: State, fields: Fields, entry: str) -> None:
    if "call" in fields:
        state[f"done:{fields['call']}"] = f"event {entry}"
        if "tokens" in fields:
            _add(state, f"calls:{fields['attempt']}", 1)
            _add(state, f"tokens:{fields['attempt']}", int(fields["tokens"]))
    else:
        state[f"event:{fields['id']}"] = fields["at"]
    attempts = state.get("attempts", "\n")
    if f"\n{fields['attempt']}\n" not in attempts:
        state["attempts"] = f"{attempts}{fields['attempt']}\n"


def _late(state: State, fields: Fields, entry: str) -> None:
    state[f"done:{fields['call']}"] = f"late {entry}"


def _lost(_state: State, _fields: Fields, _entry: str) -> None:
    """Open calls are not folded."""


def _acknowledged(state: State, fields: Fields, _entry: str) -> None:
    state[f"acked:{fields['reader']}"] = "1"


def _refused(state: State, fields: Fields, _entry: str) -> None:
    state[f"refused:{fields['attempt']}"] = fields["budget"]


def _add(state: State, name: str, count: int) -> None:
    state[name] = str(int(state.get(name, "0")) + count)


def _changed(state: State, fields: Fields) -> None:
    state["updated_at"] = fields["at"]
    state["version"] = str(int(state["version"]) + 1)


_FOLDS: dict[str, Callable[[State, Fields, str], None]] = {
    "created": _created,
    "started": _started,
    "patched": _patched,
    "handed back": _handed_back,
    "ended": _ended,
    "deleted": _deleted,
    "event": _event,
    "late": _late,
    "lost": _lost,
    "acknowledged": _acknowledged,
    "refused": _refused,
}
