"""A controller process: serves every run that it is told to, until it is told to stop.

Invariants:
- it keeps nothing that matters: another controller can take over at any moment;
- told to stop, it leaves no agent behind and no rollout in its hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from leyden.log import RunBegan, RunEnded
from leyden.log.errors import LogFull, LogUnavailable
from leyden_controller.life import Means
from leyden_controller.service import RunService
from leyden_controller.slots import Slots

_LAST_WORDS_SECONDS = 5.0
"""How long a controller that must stop waits for a log that is away."""

log = structlog.get_logger()


class Controller:
    """Serves `runs`, or all runs if none is named."""

    def __init__(
        self,
        means: Means,
        *,
        slots: int,
        lease_seconds: float,
        shutdown_grace_seconds: float,
        runs: Collection[str] = (),
    ) -> None:
        self._means = means
        self._slots = Slots(slots)
        self._lease_seconds = lease_seconds
        self._grace_seconds = shutdown_grace_seconds
        self._runs = frozenset(runs)
        self._services: dict[str, RunService] = {}
        self._serving: dict[RunService, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        means.metrics.slots.set(slots)

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            ExceptionGroup: of LogUnavailable or LogFull, if the log stayed away for too long.
        """
        runner = self._means.runner
        await runner.open()
        try:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow_runs(group))
                await self._stopping.wait()
                following.cancel()
                self._means.patience.seconds = min(self._means.patience.seconds, _LAST_WORDS_SECONDS)
                await asyncio.gather(*(each.finish(self._grace_seconds, self._hurry) for each in self._serving))
                await asyncio.gather(*(each.leave() for each in self._serving))
                for serving in self._serving.values():
                    serving.cancel()
        finally:
            await runner.close()

    def stop(self) -> None:
        """Take no more rollouts, let agents finish for the grace time and hand the others back. Asked again, don't let
        them finish."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _follow_runs(self, group: asyncio.TaskGroup) -> None:
        changes = self._means.log.runs.follow()

        async def next_change() -> RunBegan | RunEnded:
            nonlocal changes
            try:
                return await anext(changes)
            except (LogUnavailable, LogFull):
                # It begins with the first run again; what is known already changes nothing.
                changes = self._means.log.runs.follow()
                raise

        while True:
            change = await self._means.patience.through("follow runs", next_change)
            if self._runs and change.run not in self._runs:
                continue
            match change:
                case RunBegan(run):
                    self._begin(run, group)
                case RunEnded(run):
                    self._end(run, group)

    def _begin(self, run: str, group: asyncio.TaskGroup) -> None:
        known = self._services.get(run)
        if known is not None:
            if known.open:
                return
            # It found its queue gone.
            self._end(run, group)
        service = RunService(self._means, self._means.log.run(run), self._slots, self._lease_seconds)
        self._services[run] = service
        self._serving[service] = group.create_task(service.serve(), name=f"run {run}")
        log.info("run is served", run=run)

    def _end(self, run: str, group: asyncio.TaskGroup) -> None:
        service = self._services.pop(run, None)
        if service is not None:
            group.create_task(self._retire(service), name=f"end of run {run}")
            log.info("run is no longer served", run=run)

    async def _retire(self, service: RunService) -> None:
        """Let a run's agents finish, and forget it. What still waits in its queue is left there."""
        await service.finish(None, self._hurry)
        self._serving.pop(service).cancel()
