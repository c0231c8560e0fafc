"""One rollout in this controller's hands, from its queue entry to its outcome.

Invariants:
- an attempt is on record as started before its process is, so that at most one process is ever started for it;
- an outcome is recorded only while the queue entry is ours, and once: asking again gives the same;
- when this life is over, no process of its is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

import structlog

from leyden.auth import AGENT_RIGHTS, AgentClaims, Authority, Right
from leyden.log import Log, RunLog, Taken
from leyden.log.errors import LeaseLost, RolloutFinished, RolloutMissing
from leyden.schemas import Rollout, State
from leyden.variables import agent_variables
from leyden_controller import history
from leyden_controller.gateway import Gateway
from leyden_controller.metrics import Metrics
from leyden_controller.patience import Patience
from leyden_controller.runner import Cause, Ending, Launch, Runner, RunnerFailed, RunningAttempt, StartRefused
from leyden_controller.verdict import INFRA_FAILURES, Finish, verdict

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 30
_GATEWAY_SECONDS = 120
"""How long a further attempt waits for a gateway that is away."""

Result = TypeVar("Result")


class Stop(Enum):
    """Why a rollout is taken out of this controller's hands."""

    CANCELLED = auto()
    """Somebody else ended or deleted it."""
    LEASE_LOST = auto()
    """Another controller has it."""
    SHUTDOWN = auto()
    """This controller must stop."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every life of a controller needs."""

    log: Log
    consumer: str
    runner: Runner
    authority: Authority
    gateway: Gateway
    patience: Patience
    metrics: Metrics


class Life:
    """Brings one rollout to its end, unless it is stopped before."""

    def __init__(self, means: Means, run: RunLog, taken: Taken) -> None:
        self.taken = taken
        self._means = means
        self._run = run
        self._stopped: Stop | None = None
        self._stop_asked = asyncio.Event()
        self._running: RunningAttempt | None = None
        self._log = structlog.get_logger().bind(run=run.run, rollout_id=taken.rollout_id)

    def stop(self, why: Stop) -> None:
        """Kill the agent and be over soon. The first reason counts, but for a shutdown, which any other replaces."""
        if self._stopped in (None, Stop.SHUTDOWN):
            self._stopped = why
        self._stop_asked.set()
        if self._running is not None:
            self._running.kill()

    async def live(self) -> None:
        """Start, watch and end the rollout.

        Raises:
            LogUnavailable, LogFull: the log stayed away for too long. Others take over.
        """
        try:
            await self._live()
        except (RolloutMissing, RolloutFinished, LeaseLost) as error:
            self._log.info("rollout was taken away", reason=str(error))

    async def _live(self) -> None:
        rollout = await self._through("get", lambda: self._run.rollouts.get(self._id))
        endings = []
        if rollout.status.state is not State.QUEUING:
            endings = await self._through("read", lambda: history.endings(self._run, self._id))
        while self._stopped in (None, Stop.SHUTDOWN):
            step = verdict(rollout.config, endings)
            if isinstance(step, Finish):
                return await self._end(step)
            await self._breathe(endings)
            if self._stopped is None:
                endings.append(await self._attempt(rollout, step.attempt))
            elif self._stopped is Stop.SHUTDOWN:
                return await self._hand_back()
        return None

    async def _breathe(self, endings: Sequence[Ending]) -> None:
        """Wait a little after failures of ours, the longer the more there were, so that their reason may pass, and for
        the gateway to be there."""
        failures = sum(ending.cause in INFRA_FAILURES for ending in endings)
        if failures and endings[-1].cause in INFRA_FAILURES:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._stop_asked.wait(), min(_FIRST_PAUSE_SECONDS * 4 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
                )
            await self._means.gateway.back(self._stop_asked, _GATEWAY_SECONDS)

    async def _attempt(self, rollout: Rollout, attempt: str) -> Ending:
        launch = await self._launch(rollout, attempt)
        ending = await self._run_agent(launch)
        if self._stopped in (Stop.CANCELLED, Stop.LEASE_LOST):
            return ending
        if ending.cause in (Cause.SUCCEEDED, Cause.FAILED):
            ending = await self._blamed(attempt, ending)
        self._log.info("attempt ended", attempt=attempt, cause=ending.cause, reason=ending.message)
        self._means.metrics.attempts.labels(ending.cause).inc()
        if ending.cause is not Cause.SUCCEEDED:
            await self._through("record", lambda: history.record(self._run, self._id, attempt, ending))
        return ending

    async def _launch(self, rollout: Rollout, attempt: str) -> Launch:
        """Put the attempt on record as started."""
        entry, consumer = self.taken.entry, self._means.consumer
        _, location, settings = await asyncio.gather(
            self._through("start", lambda: self._run.rollouts.start(self._id, attempt, entry=entry, consumer=consumer)),
            self._through("locate", lambda: self._means.log.locate(self._id)),
            self._through("read the rules for", self._run.settings),
        )
        rights = AGENT_RIGHTS if settings.agents_may_reward else AGENT_RIGHTS - {Right.REWARD}
        key = self._means.authority.mint(AgentClaims(self._id, location.nonce, attempt, rights))
        return Launch(
            rollout,
            attempt,
            agent_variables(self._means.gateway.url, self._id, attempt, is_train=rollout.is_train, key=key),
        )

    async def _run_agent(self, launch: Launch) -> Ending:
        if self._stopped is not None:
            return Ending(Cause.STOPPED, "stopped before its agent was started")
        try:
            self._running = await self._means.runner.start(launch)
        except StartRefused as error:
            return Ending(Cause.REFUSED, str(error))
        except RunnerFailed as error:
            return Ending(Cause.LOST, str(error))
        waited = max(0.0, time.time() - int(self.taken.entry.partition("-")[0]) / 1000)
        self._log.info("attempt started", attempt=launch.attempt, waited_seconds=round(waited, 4))
        self._means.metrics.waited.observe(waited)
        try:
            if self._stopped is not None:
                self._running.kill()
            if not self._means.gateway.seen:
                await self._means.gateway.look()
            return await self._running.ended()
        finally:
            self._running = None

    async def _blamed(self, attempt: str, ending: Ending) -> Ending:
        """The ending, laid at our door if the agent's last call failed on our side or could not be made."""
        succeeded = ending.cause is Cause.SUCCEEDED
        fault = await self._through(
            "check calls", lambda: history.failed_call(self._run, self._id, attempt, succeeded=succeeded)
        )
        if fault is None and not succeeded and await self._means.gateway.lost():
            fault = f"the gateway {self._means.gateway.url} can't be reached"
        if fault is None:
            return ending
        said = f"{ending.message}; {fault}" if ending.message else f"the agent ended, but {fault}"
        return replace(ending, cause=Cause.CALL_FAILED, message=said)

    async def _end(self, finish: Finish) -> None:
        entry, consumer = self.taken.entry, self._means.consumer
        await self._through(
            "end",
            lambda: self._run.rollouts.end(self._id, finish.state, error=finish.error, entry=entry, consumer=consumer),
        )
        self._means.metrics.rollouts.labels(finish.state).inc()
        self._log.info("rollout ended", state=finish.state, error=finish.error[:300] or None)

    async def _hand_back(self) -> None:
        entry, consumer = self.taken.entry, self._means.consumer
        await self._through("hand back", lambda: self._run.queue.hand_back(consumer, entry, self._id))
        self._log.info("rollout handed back")

    @property
    def _id(self) -> str:
        return self.taken.rollout_id

    async def _through(self, what: str, ask: Callable[[], Awaitable[Result]]) -> Result:
        return await self._means.patience.through(f"{what} {self._id}", ask)
