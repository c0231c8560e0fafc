"""Waiting with one call for its run: a pause, a server, an answer.

Invariants:
- a run that refuses never waits; one that holds waits up to its limit, counted from the first wait of the call;
- a wait ends at once when the run changes or the client goes away.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

from leyden_gateway import metrics
from leyden_gateway.proxy.admission import Admission
from leyden_gateway.proxy.client import Client
from leyden_gateway.views import RunView
from leyden_gateway.waiting import Waiting


class Hold:
    """The waits of one call."""

    def __init__(self, waiting: Waiting, admission: Admission, client: Client, run: str, rollout_id: str) -> None:
        self._waiting = waiting
        self._admission = admission
        self._client = client
        self._run = run
        self._rollout_id = rollout_id
        self._until = 0.0
        self._listening: AbstractAsyncContextManager[asyncio.Event] | None = None
        self._rung: asyncio.Event | None = None
        self.seconds = 0.0
        """How long the call has waited so far."""

    def possible(self, view: RunView) -> bool:
        """Whether the run would let the call wait now."""
        return view.holds and (self._rung is None or time.monotonic() < self._until)

    async def until_changed(self, view: RunView, reason: Exception) -> None:
        """Return when it is time to try again: at once the first time, since only from now on every change is heard.

        Raises:
            reason: the run refuses instead of holding, or has held the call for as long as it allows.
            ClientGone: the client went away.
        """
        if not self.possible(view):
            raise reason
        if self._rung is None:
            await self._listen(view)
        elif not await self._wait(self._rung, self._until - time.monotonic()):
            raise reason

    async def a_while(self, view: RunView, seconds: float) -> None:
        """Return when the run has changed or the seconds are over.

        Raises:
            ClientGone: the client went away.
        """
        rung = self._rung or await self._listen(view)
        await self._wait(rung, min(seconds, self._until - time.monotonic()))

    async def end(self) -> None:
        """Listen no longer."""
        if self._listening is not None:
            await self._listening.__aexit__(None, None, None)
            self._listening = None

    async def _listen(self, view: RunView) -> asyncio.Event:
        self._until = time.monotonic() + view.settings.hold_timeout_seconds
        listening = self._waiting.listen(self._run, self._rollout_id)
        self._rung = await listening.__aenter__()
        self._listening = listening
        return self._rung

    async def _wait(self, rung: asyncio.Event, seconds: float) -> bool:
        started = time.perf_counter()
        metrics.HELD.inc()
        try:
            with self._admission.held():
                async with self._client.patience(seconds, grace_seconds=0):
                    await rung.wait()
        except TimeoutError:
            return False
        finally:
            metrics.HELD.dec()
            self.seconds += time.perf_counter() - started
        rung.clear()
        return True
