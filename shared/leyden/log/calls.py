"""Calls to models, from before they are forwarded until what they gave is on record.

Invariants, each held by one script:
- a call is opened only while its rollout has not ended, its attempt is not fenced and the run is not paused;
- it is in flight while it is open and its replica's heart beats;
- what its payload refers to is on record before it, in the same stream;
- it is recorded once; what was lost meanwhile (its rollout ended, another attempt took over) is recorded as late and
  never becomes a sample;
- no more calls of an attempt are ever open and on record together than its budget allows, and none is opened once its
  tokens are used up; what is taken off counts for nothing;
- a call's event says the weight version that its server was registered with when it was opened and when it was closed;
- closing works when memory is full, opening does not;
- a call whose opener never learned that it was opened is taken off again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from leyden.log.errors import (
    AttemptFenced,
    BaseMissing,
    BudgetSpent,
    CallLost,
    LogFull,
    LogUnavailable,
    RolloutFinished,
    RolloutMissing,
    RunPaused,
)
from leyden.log.keys import RunKeys
from leyden.log.models import registered_as
from leyden.log.replicas import REPLICA_TTL_SECONDS
from leyden.log.scripts import Scripts, text
from leyden.schemas import Model, PauseState

_TAKE_OFF_SECONDS = 600.0
"""For how long a doubtful call is tried to be taken off while Redis is away."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The call may be forwarded; `revision` names the run's rules and models that hold for it."""

    revision: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The call is on record as `entry` of the rollout's stream; `late` if nothing may be learned from it."""

    entry: str
    late: bool


class Calls:
    """Opens and closes the calls of one run's rollouts."""

    def __init__(self, scripts: Scripts, k: RunKeys) -> None:
        self._scripts = scripts
        self._keys = k
        self._doubtful: set[asyncio.Task[None]] = set()

    async def open(
        self,
        rollout_id: str,
        attempt: str,
        call_id: str,
        replica: str,
        *,
        nonce: str | None = None,
        admin: bool = False,
    ) -> Opened:
        """Note that `replica` is about to forward a call; opening an open call again changes nothing.

        An agent gives the `nonce` of its token; with `admin`, attempts are not fenced. If this raises LogUnavailable or
        is cancelled, the call is taken off as soon as Redis answers: open another under a new id.

        Raises:
            RolloutMissing, RolloutFinished, AttemptFenced, RunPaused
            BudgetSpent: the attempt may make no more calls; the first such refusal is put on record.
        """
        if not admin and not nonce:
            raise ValueError(f"call {call_id} of rollout {rollout_id} has neither a nonce nor the admin's rights")
        k = self._keys
        try:
            outcome, *rest = await self._scripts.run(
                "open_call",
                (k.rollout(rollout_id), k.settings, k.replicas, k.events(rollout_id)),
                (attempt, call_id, replica, "" if admin else nonce or ""),
            )
        except (LogUnavailable, asyncio.CancelledError):
            self._take_off_later(rollout_id, attempt, call_id)
            raise
        match outcome:
            case b"opened":
                return Opened(rest[0])
            case b"paused":
                raise RunPaused(k.run, _pause(rest))
            case b"spent":
                what, used, limit = rest
                raise BudgetSpent(rollout_id, attempt, text(what), used, limit)
            case b"fenced":
                raise AttemptFenced(rollout_id, attempt, text(rest[0]))
            case b"finished":
                raise RolloutFinished(rollout_id, text(rest[0]))
            case _:
                raise RolloutMissing(rollout_id)

    async def recheck(self, rollout_id: str, call_id: str) -> Opened:
        """Ask whether an open call may be forwarded once more, and under which rules and models.

        Raises:
            RunPaused: not now; the call is no longer open and must be opened again after the pause.
            CallLost: its rollout ended or was freed, or another attempt took over.
        """
        k = self._keys
        outcome, *rest = await self._scripts.run(
            "recheck_call",
            (k.rollout(rollout_id), k.settings, k.replicas, k.control),
            (call_id, REPLICA_TTL_SECONDS),
        )
        match outcome:
            case b"paused":
                raise RunPaused(k.run, _pause(rest))
            case b"lost":
                raise CallLost(rollout_id, call_id)
        return Opened(rest[0])

    async def close(
        self,
        rollout_id: str,
        attempt: str,
        call_id: str,
        payload: bytes,
        *,
        event_type: str = "model_request",
        nonce: str | None = None,
        bases: Sequence[str] = (),
        server: Model | None = None,
        tokens: int | None = None,
    ) -> Closed:
        """Put on record what a call gave; closing it again changes nothing and returns the same.

        `payload` is the event's data, encoded, and `bases` are the calls that it refers to. `server` is who answered:
        the event tells the version that it has now. `tokens` is what the call takes from its attempt's budget; one
        without takes nothing. With the `nonce` of the
        rollout that the call was opened in, nothing is recorded in a rollout that was created anew under the id.

        Raises:
            RolloutMissing: the rollout was freed meanwhile; nothing is recorded.
            BaseMissing: one of the bases is not on record, since Redis has lost it or the rollout was created anew; the
                call is still open and may be closed with another payload.
        """
        if not payload:
            raise ValueError(f"call {call_id} of rollout {rollout_id} has an empty payload; abandon it instead")
        outcome, *rest = await self._close(
            rollout_id, attempt, call_id, event_type, payload, nonce, server, tokens, bases
        )
        if outcome == b"missing":
            raise RolloutMissing(rollout_id)
        if outcome == b"base missing":
            raise BaseMissing(rollout_id, text(rest[0]))
        return Closed(text(rest[0]), late=outcome == b"late")

    async def abandon(self, rollout_id: str, attempt: str, call_id: str) -> None:
        """Take a call off that sampled nothing and leaves no event; also if it is not open or the rollout is gone."""
        await self._close(rollout_id, attempt, call_id, "", b"", None)

    async def _close(
        self,
        rollout_id: str,
        attempt: str,
        call_id: str,
        event_type: str,
        payload: bytes,
        nonce: str | None,
        server: Model | None = None,
        tokens: int | None = None,
        bases: Sequence[str] = (),
    ) -> list:
        k = self._keys
        return await self._scripts.run(
            "close_call",
            (k.rollout(rollout_id), k.events(rollout_id), k.settings, k.replicas, k.control, k.models),
            (
                attempt,
                call_id,
                event_type,
                payload,
                REPLICA_TTL_SECONDS,
                nonce or "",
                registered_as(server) if server is not None else "",
                "" if tokens is None else tokens,
                *bases,
            ),
        )

    def _take_off_later(self, rollout_id: str, attempt: str, call_id: str) -> None:
        task = asyncio.create_task(self._take_off(rollout_id, attempt, call_id))
        self._doubtful.add(task)
        task.add_done_callback(self._doubtful.discard)

    async def _take_off(self, rollout_id: str, attempt: str, call_id: str) -> None:
        deadline, pause = time.monotonic() + _TAKE_OFF_SECONDS, 0.1
        while time.monotonic() < deadline:
            try:
                await self.abandon(rollout_id, attempt, call_id)
                return
            except (LogUnavailable, LogFull):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)


def _pause(rest: list) -> PauseState:
    retry_after, reason = rest
    return PauseState(paused=True, retry_after_seconds=int(text(retry_after) or 0), reason=text(reason) or None)
