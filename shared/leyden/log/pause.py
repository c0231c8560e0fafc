"""Holding back new calls of a run, exactly, across all replicas.

Invariant: after `pause` has returned, no replica opens a call until `resume`; `inflight` counts the calls that were
opened before and are neither closed nor their replica's heart stopped.
"""

from __future__ import annotations

import time

from leyden.log.control import Control
from leyden.log.errors import DrainTimeout, LeaseLost, RunMissing
from leyden.log.keys import RunKeys
from leyden.log.replicas import REPLICA_TTL_SECONDS
from leyden.log.scripts import Scripts, text
from leyden.schemas import PauseRequest, PauseState

_LOOK_AGAIN_SECONDS = 3.0
"""A replica that died announces nothing: its calls leave the count when its heartbeat is too old."""


class Pause:
    """The pause of one run; every method raises RunMissing if the run has not begun.

    With an `epoch`, only the trainer that holds the lease of that epoch may change it; others get LeaseLost.
    """

    def __init__(self, scripts: Scripts, control: Control, k: RunKeys) -> None:
        self._scripts = scripts
        self._control = control
        self._keys = k

    async def pause(self, request: PauseRequest | None = None, *, epoch: int | None = None) -> PauseState:
        """Hold back new calls; pausing a paused run changes only what the refused are told."""
        request = request or PauseRequest()
        return await self._set("pause", request.retry_after_seconds, request.reason or "", epoch)

    async def resume(self, *, epoch: int | None = None) -> PauseState:
        """Let new calls go."""
        return await self._set("resume", epoch=epoch)

    async def state(self) -> PauseState:
        """Whether calls are held back, and how many are in flight."""
        return await self._set("look")

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until no call is in flight.

        Raises:
            DrainTimeout: some still were when the time was over.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            place = await self._control.last()
            state = await self.state()
            left = deadline - time.monotonic()
            if state.inflight == 0:
                return
            if left <= 0:
                raise DrainTimeout(self._keys.run, state.inflight, timeout_seconds)
            await self._control.wait(place, min(left, _LOOK_AGAIN_SECONDS))

    async def _set(self, verb: str, retry_after: int = 0, reason: str = "", epoch: int | None = None) -> PauseState:
        k = self._keys
        outcome, *rest = await self._scripts.run(
            "set_pause",
            [k.settings, k.replicas, k.control],
            [verb, REPLICA_TTL_SECONDS, retry_after, reason, "" if epoch is None else epoch],
        )
        match outcome:
            case b"no run":
                raise RunMissing(k.run)
            case b"lost":
                raise LeaseLost(f"run {k.run}: the trainer of epoch {epoch} was replaced by {text(rest[0])}")
        paused, retry, why, inflight = rest
        return PauseState(
            paused=paused == b"1", retry_after_seconds=int(text(retry)), reason=text(why) or None, inflight=inflight
        )
