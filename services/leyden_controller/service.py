"""Serves one run: takes its rollouts from the queue, keeps their leases and sees them through.

Invariants:
- never more rollouts are taken than slots are free;
- a rollout in hand is renewed three times a lease, and dropped at once when it turns out to be another's;
- what other controllers no longer renew is taken over, before anything new is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

import structlog

from leyden.cancellation import heed_cancellation
from leyden.log import ControlEntry, RunLog, Signal, Taken
from leyden.log.errors import LogFull, LogUnavailable, RunMissing
from leyden_controller.life import Life, Means, Stop
from leyden_controller.slots import Slots

_WAIT_SECONDS = 20.0
_HAND_BACK_SECONDS = 15.0


class RunService:
    """One controller's work for one run."""

    def __init__(self, means: Means, run: RunLog, slots: Slots, lease_seconds: float) -> None:
        self._means = means
        self._run = run
        self._slots = slots
        self._lease_seconds = lease_seconds
        self._lives: dict[str, Life] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._taking = asyncio.Lock()
        self._reserved = 0
        self._look_for_dead_at = 0.0
        self._log = structlog.get_logger().bind(run=run.run)

    @property
    def open(self) -> bool:
        """Whether it still takes rollouts."""
        return self._open.is_set()

    async def serve(self) -> None:
        """Take rollouts and see them through until cancelled, then stop those in hand.

        Raises:
            LogUnavailable, LogFull: the log stayed away for too long.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._take())
                group.create_task(self._keep_leases())
                group.create_task(self._heed_cancellations())
        finally:
            for task in self._tasks:
                task.cancel()

    async def finish(self, grace_seconds: float | None, hurry: asyncio.Event) -> None:
        """Take no more, let agents finish for `grace_seconds` (None: as long as they need) or until `hurry`, and hand
        the others back."""
        self._open.clear()
        async with self._taking:
            pass
        await self._settle(grace_seconds, hurry)
        for life in self._lives.values():
            life.stop(Stop.SHUTDOWN)
        await self._settle(_HAND_BACK_SECONDS, asyncio.Event())

    async def leave(self) -> None:
        """Let the run forget this controller, once nothing in this process takes its rollouts any more."""
        with contextlib.suppress(LogUnavailable, LogFull, RunMissing):
            await self._run.queue.leave(self._means.consumer)

    async def _settle(self, seconds: float | None, hurry: asyncio.Event) -> None:
        """Wait until no life is left, `seconds` have passed or `hurry` is set."""
        if not self._tasks:
            return
        hurried = asyncio.create_task(hurry.wait())
        settled = asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.wait({hurried, settled}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()

    async def _take(self) -> None:
        through = self._means.patience.through
        after = "0-0"
        while True:
            await self._open.wait()
            self._reserved = await self._slots.reserve()
            try:
                await through(f"take from {self._run.run}", self._take_once)
                exhausted = self._reserved > 0
            except RunMissing:
                self._log.warning("the run is gone")
                self._open.clear()
                continue
            finally:
                self._slots.release(self._reserved)
            if exhausted:
                wait = functools.partial(self._run.queue.wait, after, min(_WAIT_SECONDS, self._lease_seconds / 3))
                after = await through(f"wait for {self._run.run}", wait)

    async def _take_once(self) -> None:
        """Take and begin as many rollouts as slots are reserved.

        Those whose taking we never learn of, since the answer was lost, come back when their lease is over.
        """
        async with self._taking:
            if not self._open.is_set():
                return
            await self._take_over()
            if self._reserved:
                for taken in await self._run.queue.take(self._means.consumer, self._reserved):
                    self._begin(taken)

    async def _take_over(self) -> None:
        """Take and begin rollouts of controllers that are gone, three times a lease."""
        now = time.monotonic()
        if now < self._look_for_dead_at:
            return
        stale = await self._run.queue.take_over(self._means.consumer, self._lease_seconds, self._reserved)
        if len(stale) < self._reserved:
            self._look_for_dead_at = now + self._lease_seconds / 3
        for taken in stale:
            # Our own may be among them, if the log was away for longer than a lease.
            if taken.entry not in self._lives:
                self._log.info("rollout was taken over", rollout_id=taken.rollout_id)
                self._begin(taken)

    def _begin(self, taken: Taken) -> None:
        """Put a reserved slot to use."""
        self._reserved -= 1
        life = Life(self._means, self._run, taken)
        self._lives[taken.entry] = life
        self._means.metrics.held.inc()
        task = asyncio.create_task(life.live(), name=f"rollout {taken.rollout_id}")
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._over, taken))

    def _over(self, taken: Taken, task: asyncio.Task[None]) -> None:
        del self._lives[taken.entry]
        self._tasks.discard(task)
        self._means.metrics.held.dec()
        self._slots.release(1)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its lease runs out, and it begins anew in whichever controller finds it.
            self._log.error("rollout was dropped", rollout_id=taken.rollout_id, exc_info=error)

    async def _keep_leases(self) -> None:
        while True:
            heed_cancellation()
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                lost = await self._run.queue.renew(self._means.consumer, list(self._lives))
            except (LogUnavailable, LogFull) as error:
                self._log.warning("leases could not be renewed", rollouts=len(self._lives), error=str(error))
                continue
            for entry in lost & self._lives.keys():
                self._lives[entry].stop(Stop.LEASE_LOST)

    async def _heed_cancellations(self) -> None:
        through = self._means.patience.through
        after = await through(f"follow {self._run.run}", self._run.control.last)
        while True:
            wait = functools.partial(self._run.control.wait, after, _WAIT_SECONDS)
            for signal in await through(f"follow {self._run.run}", wait):
                after = signal.entry
                if signal.kind is Signal.CANCELLED:
                    self._cancel(signal)

    def _cancel(self, signal: ControlEntry) -> None:
        for life in self._lives.values():
            # A rollout queued after the signal has only the id in common with the one that was cancelled.
            if life.taken.rollout_id == signal.rollout_id and _time_of(life.taken.entry) <= _time_of(signal.entry):
                life.stop(Stop.CANCELLED)


def _time_of(entry: str) -> int:
    """Milliseconds of an entry id, on Redis's clock."""
    return int(entry.partition("-")[0])
