"""A call's entry in the log: opened before it is forwarded, closed with what it gave, or taken off.

Invariants:
- the log is asked before every try whether the call may be forwarded;
- a close is repeated while Redis is away, since the log records a call once however often it is closed;
- what was opened is closed or taken off, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

import structlog

from leyden.log import RunLog
from leyden.log.errors import CallLost, LogFull, LogUnavailable, RolloutMissing, RunPaused
from leyden.schemas import Model
from leyden_gateway import metrics
from leyden_gateway.replica import Replica

_log = structlog.get_logger("leyden.gateway.call")

_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0


class LoggedCall:
    """One call of an attempt, by whichever ids it is opened under; at most one of them is open."""

    def __init__(self, replica: Replica, run: RunLog, rollout_id: str, attempt: str, nonce: str | None) -> None:
        """`nonce` is that of an agent's token, None for the admin, who is not fenced."""
        self._replica = replica
        self._run = run
        self._rollout_id = rollout_id
        self._attempt = attempt
        self._nonce = nonce
        self._call_id: str | None = None
        self._counted = False

    async def open(self) -> int:
        """Open the call, under its old id if a pause took it off, and return the run's revision.

        Raises:
            RunPaused, RolloutMissing, RolloutFinished, AttemptFenced, BudgetSpent
            LogUnavailable, LogFull: it is not open, or will be taken off.
        """
        call_id, self._call_id = self._call_id or secrets.token_hex(16), None
        try:
            opened = await self._run.calls.open(
                self._rollout_id,
                self._attempt,
                call_id,
                self._replica.name,
                nonce=self._nonce,
                admin=self._nonce is None,
            )
        except RunPaused:
            self._call_id = call_id
            raise
        self._call_id = call_id
        self._counted = True
        self._replica.opened(self._run.run)
        metrics.INFLIGHT.inc()
        return opened.revision

    async def recheck(self) -> int:
        """Ask whether the open call may be forwarded once more, and return the run's revision.

        Raises:
            RunPaused: not now; it is no longer open, and to be opened again.
            CallLost: its rollout ended, or another attempt took over.
        """
        try:
            return (await self._run.calls.recheck(self._rollout_id, self._call_id or "")).revision
        except RunPaused:
            self._uncount()
            raise

    @property
    def call_id(self) -> str:
        """The id under which it is open."""
        return self._call_id or ""

    async def close(
        self,
        payload: bytes,
        timeout_seconds: float,
        bases: Sequence[str] = (),
        *,
        server: Model | None = None,
        tokens: int | None = None,
    ) -> None:
        """Put the call on record, trying for that long while Redis is away.

        `bases` are the calls that `payload` refers to, `server` is who answered, and `tokens` what the call takes from
        its attempt's budget, None if nothing.

        Raises:
            LogUnavailable, LogFull: Redis stayed away too long.
            CallLost: it was lost meanwhile; what it gave is on record as late.
            RolloutMissing: the rollout was freed meanwhile; nothing is recorded.
            BaseMissing: one of them is not on record; the call is still open.
        """
        call_id = self.call_id
        deadline, pause = time.monotonic() + timeout_seconds, _FIRST_PAUSE_SECONDS
        while True:
            try:
                closed = await self._run.calls.close(
                    self._rollout_id,
                    self._attempt,
                    call_id,
                    payload,
                    nonce=self._nonce,
                    bases=bases,
                    server=server,
                    tokens=tokens,
                )
                break
            except (LogUnavailable, LogFull) as error:
                metrics.LOG_ERRORS.labels(type(error).__name__).inc()
                if time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        self._call_id = None
        self._uncount()
        if closed.late:
            raise CallLost(self._rollout_id, call_id)

    async def take_off(self) -> None:
        """Take the call off, if it is open or waits to be; nothing was sampled. Goes on if the caller is cancelled."""
        if self._call_id is None:
            return
        call_id, self._call_id = self._call_id, None
        self._uncount()
        await asyncio.shield(self._abandon(call_id))

    async def _abandon(self, call_id: str) -> None:
        try:
            await self._run.calls.abandon(self._rollout_id, self._attempt, call_id)
        except (LogUnavailable, LogFull) as error:
            # It stays open in the log until its rollout ends, which marks it lost.
            _log.warning("call not taken off", rollout_id=self._rollout_id, call_id=call_id, error=str(error))

    async def note(self, event_type: str, data: dict, event_id: str) -> None:
        """Append an event about the call to its attempt; a failure is only logged."""
        try:
            await self._run.events.append(self._rollout_id, self._attempt, event_type, data, event_id=event_id)
        except (LogUnavailable, LogFull, RolloutMissing) as error:
            _log.warning("event not appended", rollout_id=self._rollout_id, type=event_type, error=str(error))

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._replica.closed(self._run.run)
            metrics.INFLIGHT.dec()
