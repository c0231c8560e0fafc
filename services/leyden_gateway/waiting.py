"""Calls that are held, and what wakes them.

Invariants:
- a run's control stream is followed by one reader a replica, and only while calls of the run are held;
- no wake-up is lost: a call that is refused after it began to listen hears of every later change;
- if the stream can't be read, held calls are woken when it can be again, to look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from leyden.log import Log
from leyden.log.errors import LogUnavailable

_log = structlog.get_logger("leyden.gateway.waiting")

_WAKING = frozenset({"resumed", "models", "settings"})
_ENDING = frozenset({"cancelled", "fenced"})
_RECONNECT_SECONDS = 1.0


class Waiting:
    """Lets calls wait for a run to change."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._followers: dict[str, _Follower] = {}

    @asynccontextmanager
    async def listen(self, run: str, rollout_id: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever a held call of this rollout should try again; clear it before each try.

        Raises:
            LogUnavailable: the control stream can't be read.
        """
        follower = self._followers.get(run)
        if follower is None:
            follower = self._followers[run] = _Follower(self._log, run)
        rung = asyncio.Event()
        follower.listeners[rung] = rollout_id
        try:
            await follower.following()
            yield rung
        finally:
            del follower.listeners[rung]
            if not follower.listeners:
                self._followers.pop(run, None)
                follower.stop()

    @property
    def held(self) -> int:
        """How many calls listen now."""
        return sum(len(follower.listeners) for follower in self._followers.values())


class _Follower:
    """Follows one run's control stream and wakes the listeners."""

    def __init__(self, log: Log, run: str) -> None:
        self._control = log.run(run).control
        self._run = run
        self.listeners: dict[asyncio.Event, str] = {}
        self._started = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def following(self) -> None:
        """Return once every later entry will be seen."""
        async with self._started:
            if self._task is None:
                after = await self._control.last()
                self._task = asyncio.create_task(self._follow(after), name=f"follow {self._run}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, after: str) -> None:
        while True:
            try:
                async for entry in self._control.follow(after):
                    after = entry.entry
                    if entry.kind in _WAKING:
                        self._ring(None)
                    elif entry.kind in _ENDING:
                        self._ring(entry.rollout_id)
            except LogUnavailable as error:
                _log.warning("control stream lost", run=self._run, error=str(error))
                await asyncio.sleep(_RECONNECT_SECONDS)
                self._ring(None)

    def _ring(self, rollout_id: str | None) -> None:
        for event, rollout in self.listeners.items():
            if rollout_id is None or rollout == rollout_id:
                event.set()
