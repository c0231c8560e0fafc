"""Answers that were sampled but never reached their agent, and the retry that gets one of them.

Invariants:
- an undelivered answer goes to one retry at most, whichever replica that reaches: the claim is an event with an id,
  which the log appends once;
- a retry that finds its first call still running in this process waits for it rather than sampling beside it;
- a call that does not say that it is a retry is sampled anew, so that asking twice on purpose gives two samples.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from leyden.log import RunLog
from leyden.schemas import Event
from leyden.triplet import MODEL_REQUEST, REDELIVERED, UNDELIVERED

JSON = dict[str, Any]

_KEY = b"idempotency-key"
_RETRY_COUNT = b"x-stainless-retry-count"


def is_retry(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request says that it repeats an earlier one."""
    return bool(headers.get(_KEY)) or headers.get(_RETRY_COUNT, b"0") != b"0"


def request_key(path: str, headers: Mapping[bytes, bytes], raw: bytes) -> str:
    """What a call and its retries have in common: protocol, idempotency key and body."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (path.encode(), headers.get(_KEY, b""), raw):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


async def claim(run: RunLog, rollout_id: str, attempt: str, key: str, *, nonce: str | None) -> JSON | None:
    """The data of a complete undelivered call with this key, for this caller alone; None if there is none left.

    `nonce` is that of an agent's token, None for the admin.

    Raises:
        RolloutMissing, RolloutFinished, AttemptFenced
    """
    events = await run.events.of_attempt(rollout_id, attempt)
    for call in _unclaimed(events, key):
        call_id, mine = call["call_id"], uuid.uuid4().hex
        await run.events.append(
            rollout_id,
            attempt,
            REDELIVERED,
            {"call_id": call_id, "claim": mine},
            event_id=f"{REDELIVERED}-{call_id}",
            nonce=nonce,
            admin=nonce is None,
        )
        claims = _of_type(await run.events.of_attempt(rollout_id, attempt), REDELIVERED)
        if any(each["claim"] == mine for each in claims if each["call_id"] == call_id):
            return call
    return None


def _unclaimed(events: list[Event], key: str) -> list[JSON]:
    claimed = {each["call_id"] for each in _of_type(events, REDELIVERED)}
    missed = {each["call_id"] for each in _of_type(events, UNDELIVERED) if each["request_key"] == key} - claimed
    return [call for call in _of_type(events, MODEL_REQUEST) if call.get("call_id") in missed]


def _of_type(events: list[Event], event_type: str) -> list[JSON]:
    return [event.data for event in events if event.event_type == event_type]


class Orphans:
    """Calls of this process whose clients have gone, by what their retries will look like."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str, str], asyncio.Event] = {}

    def add(self, rollout_id: str, attempt: str, key: str) -> asyncio.Event:
        """Note a call that runs on without its client; set the event when it is on record or over."""
        over = asyncio.Event()
        self._running[rollout_id, attempt, key] = over
        return over

    def remove(self, rollout_id: str, attempt: str, key: str, over: asyncio.Event) -> None:
        """Let those go that wait for a call."""
        over.set()
        if self._running.get((rollout_id, attempt, key)) is over:
            del self._running[rollout_id, attempt, key]

    def find(self, rollout_id: str, attempt: str, key: str) -> asyncio.Event | None:
        """The end of the call that such a retry repeats, if it runs here."""
        return self._running.get((rollout_id, attempt, key))
