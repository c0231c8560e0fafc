"""What happened to a rollout, in order: its stream, written and read.

Invariants:
- an event with an id is appended once;
- what an agent sends for an attempt that is over, or for a rollout that has ended, is refused;
- reading gives back exactly what was recorded. What calls have in common, such as the messages of a conversation, is
  one object in all that are read together, so nothing in them is to be changed in place.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.encoding import BaseUnknown, decode, encode
from leyden.log.errors import AttemptFenced, RolloutFinished, RolloutMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import DEFAULT_ATTEMPT, Event


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a rollout's stream.

    `kind` is created, started, patched, handed back, ended, deleted, acknowledged or refused (a call that its attempt's
    budget did not allow, the first one); event for what the contract calls
    an event; late for one that came after its attempt or rollout was over; lost for a call that was open then. `at` is
    in Unix seconds.
    """

    entry: str
    kind: str
    at: float
    attempt: str | None = None
    event_type: str | None = None
    call_id: str | None = None
    data: dict[str, Any] | None = None
    notes: dict[str, str] = field(default_factory=dict)


_FIRST_PAGE, _PAGE = 2, 8
"""Entries read at once from a stream's end; what is looked for is nearly always the last call."""

_THREAD_ABOVE_BYTES = 50_000
"""Decoding more takes over a millisecond."""

Rows = list[tuple[bytes, dict[bytes, bytes]]]

_OWN_FIELDS = {b"kind", b"at", b"attempt", b"type", b"call", b"data", b"version_at_end"}


class Events:
    """The streams of one run's rollouts."""

    def __init__(self, redis: Redis, scripts: Scripts, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = k

    async def append(
        self,
        rollout_id: str,
        attempt: str,
        event_type: str,
        data: dict[str, Any],
        *,
        event_id: str | None = None,
        nonce: str | None = None,
        admin: bool = True,
        vital: bool = True,
    ) -> Event:
        """Append an event; with an `event_id`, appending it to the attempt again changes nothing and returns the first
        one's time. One that is not `vital` is refused when memory is full.

        Agents' ids are apart from the others, so that none takes the place of an event of a service.

        Raises:
            RolloutMissing
            LogFull: only if not `vital`.
            AttemptFenced, RolloutFinished: only if not `admin`; then `nonce` is that of the agent's token.
        """
        if not admin and not nonce:
            raise ValueError(f"an event of rollout {rollout_id} has neither a nonce nor the admin's rights")
        k, name = self._keys, event_id or uuid.uuid4().hex
        outcome, *rest = await self._scripts.run(
            "append_vital_event" if vital else "append_event",
            [k.rollout(rollout_id), k.events(rollout_id)],
            [
                attempt,
                event_type,
                # An attempt that follows another starts from nothing and names its events as that one did.
                f"{attempt}.{name}" if admin else f"{attempt}.agent.{name}",
                encode(data),
                "" if admin else nonce or "",
            ],
        )
        match outcome:
            case b"appended":
                return Event(
                    event_type=event_type,
                    rollout_id=rollout_id,
                    attempt_id=attempt,
                    timestamp=float(text(rest[0])),
                    data=data,
                )
            case b"fenced":
                raise AttemptFenced(rollout_id, attempt, text(rest[0]))
            case b"finished":
                raise RolloutFinished(rollout_id, text(rest[0]))
            case _:
                raise RolloutMissing(rollout_id)

    async def of_attempt(self, rollout_id: str, attempt: str | None = None) -> list[Event]:
        """The events of an attempt, by default the last one, in order; late ones are not among them.

        Raises:
            RolloutMissing
        """
        entries, last = await self._read(rollout_id)
        wanted = attempt or last or DEFAULT_ATTEMPT
        return [
            Event(
                event_type=entry.event_type or "",
                rollout_id=rollout_id,
                attempt_id=wanted,
                timestamp=entry.at,
                data=entry.data or {},
            )
            for entry in entries
            if entry.kind == "event" and entry.attempt == wanted
        ]

    async def entries(self, rollout_id: str) -> list[Entry]:
        """Everything on record of a rollout, in order.

        Raises:
            RolloutMissing
        """
        entries, _ = await self._read(rollout_id)
        return entries

    async def backwards(self, rollout_id: str) -> AsyncIterator[Entry]:
        """What is on record of a rollout, the newest first.

        Few entries are read at a time, until one goes on from an earlier call: then all before it are.
        """
        before, count = "+", _FIRST_PAGE
        while rows := await self._newest(rollout_id, before, count):
            before, count = f"({text(rows[-1][0])}", _PAGE
            try:
                entries = await _decoded(rows[::-1])
            except BaseUnknown:
                rows, before = await self._newest(rollout_id, text(rows[0][0]), None), ""
                entries = await _decoded(rows[::-1])
            for entry in reversed(entries):
                yield entry
            if not before:
                return

    async def _newest(self, rollout_id: str, latest: str, count: int | None) -> Any:
        try:
            return await self._redis.xrevrange(self._keys.events(rollout_id), latest, "-", count=count)
        except RedisError as error:
            raise_as_log_error(error)

    async def _read(self, rollout_id: str) -> tuple[list[Entry], str | None]:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hmget(self._keys.rollout(rollout_id), ["state", "hidden", "attempt"])
        pipeline.xrange(self._keys.events(rollout_id))
        try:
            (state, hidden, attempt), rows = await pipeline.execute()
        except RedisError as error:
            raise_as_log_error(error)
        if state is None or hidden:
            raise RolloutMissing(rollout_id)
        return await _decoded(rows), text(attempt) or None


async def _decoded(rows: Rows) -> list[Entry]:
    """The entries of a stream, or of a part of it, in order."""
    if sum(len(fields.get(b"data", b"")) for _, fields in rows) > _THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(_entries, rows)
    return _entries(rows)


def _entries(rows: Rows) -> list[Entry]:
    calls: dict[str, dict[str, Any]] = {}
    entries = []
    for entry, fields in rows:
        payload = fields.get(b"data")
        data = None if payload is None else decode(payload, calls)
        if b"call" in fields and data is not None:
            calls[text(fields[b"call"])] = data
        entries.append(_entry(entry, fields, data))
    return entries


def _entry(entry: bytes, fields: dict[bytes, bytes], data: dict[str, Any] | None) -> Entry:
    return Entry(
        entry=text(entry),
        kind=text(fields[b"kind"]),
        at=float(text(fields[b"at"])),
        attempt=text(fields.get(b"attempt")) or None,
        event_type=text(fields.get(b"type")) or None,
        call_id=text(fields.get(b"call")) or None,
        data=None if data is None else _completed(data, fields.get(b"version_at_end")),
        notes={text(name): text(value) for name, value in fields.items() if name not in _OWN_FIELDS},
    )


def _completed(data: dict[str, Any], version_at_end: bytes | None) -> dict[str, Any]:
    """A call's data with what was known only as it was put on record."""
    return data if version_at_end is None else {**data, "model_version_at_end": orjson.loads(version_at_end)}
