"""The trainer's hold on its run: the lease, the steps it records, and whether calls are held.

Invariants:
- while a session is open its lease is renewed; who lost it can neither record, hold, release,
  acknowledge nor save;
- calls are held from the opening of the session until weights were loaded for the first time.
"""

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from typing import Any

import structlog

from leyden.log import Log, RunLog, RunSettings, StepEntry
from leyden.log.errors import LeaseHeld
from leyden.schemas import Model, PauseRequest, State
from leyden_trainer.ids import IdInvalid, parse_rollout_id
from leyden_trainer.log_thread import LogThread
from leyden_trainer.patience import patiently

logger = structlog.get_logger(__name__)

_RENEWALS_A_LEASE = 3
_MOST_UNFINISHED = 100_000


class Session:
    """One trainer process's time with a run. Its methods block, and are called from verl's thread."""

    def __init__(
        self, log: Log, run: str, thread: LogThread, *, lease_seconds: float, log_timeout_seconds: float
    ) -> None:
        self.run: RunLog = log.run(run)
        self._log = log
        self._thread = thread
        self._lease_seconds = lease_seconds
        self._patience = log_timeout_seconds
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The number of this hold on the run; it rises with each."""
        return self._epoch

    def open(self, settings: RunSettings) -> None:
        """Begin the run, or go on with it: take the lease, waiting for a dead trainer's to run out, and hold calls.

        Raises:
            LeaseHeld: another trainer is alive.
        """
        self._ask(self._log.runs.begin(self.run.run, settings), "beginning the run")
        self._epoch = self._thread.call(
            self._take_lease(), f"taking the lease of run {self.run.run}", 2 * self._lease_seconds + self._patience
        )
        self._thread.spawn(self._keep_lease())
        self.hold("the trainer is starting")

    def close(self, *, finished: bool) -> None:
        """Give the lease up; a run that is finished takes no more rollouts."""
        if finished:
            self._ask(self._log.runs.end(self.run.run), "ending the run")
        self._ask(self.run.lease.release(self.holder, self._epoch), "releasing the lease")

    def check(self) -> None:
        """Return if this process still holds the run.

        Raises:
            LeaseLost
        """
        self._ask(self.run.lease.renew(self.holder, self._epoch, self._lease_seconds), "renewing the lease")

    def steps(self) -> list[StepEntry]:
        """All that the run has on record."""
        return self._patiently(self.run.steps.read, "reading the run's steps")

    def record(self, kind: str, data: dict[str, Any], step_id: str) -> None:
        """Put a step on record, once.

        Raises:
            LeaseLost
        """
        self._patiently(
            lambda: self.run.steps.append(kind, data, epoch=self._epoch, step_id=step_id), f"recording {step_id}"
        )

    def hold(self, reason: str) -> None:
        """From now on no call of the run is forwarded. Raises LeaseLost."""
        request = PauseRequest(reason=reason)
        self._patiently(lambda: self.run.pause.pause(request, epoch=self._epoch), "holding calls")

    def drain(self, timeout_seconds: float) -> None:
        """Wait until none is in flight.

        Raises:
            DrainTimeout
        """
        doing = "waiting for calls in flight"
        self._thread.call(
            patiently(lambda: self.run.pause.drained(timeout_seconds), doing, self._patience),
            doing,
            timeout_seconds + 2 * self._patience,
        )

    def release(self, models: Sequence[Model]) -> None:
        """Let calls go, to these servers and no others. Raises LeaseLost."""
        self._patiently(lambda: self.run.models.replace(models, epoch=self._epoch), "replacing the run's model servers")
        self._patiently(lambda: self.run.pause.resume(epoch=self._epoch), "releasing calls")

    def abandon_other_branches(self, branch: str) -> int:
        """End what another branch has asked for and has not got; returns how many rollouts."""
        return self._thread.call(self._abandon(branch), "ending the rollouts of other branches", 2 * self._patience)

    def _ask(self, work: Any, doing: str) -> Any:
        return self._thread.call(work, doing, self._patience)

    def _patiently(self, ask: Any, doing: str) -> Any:
        return self._thread.call(patiently(ask, doing, self._patience), doing, 2 * self._patience)

    async def _take_lease(self) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._lease_seconds + 1
        while True:
            try:
                return await patiently(
                    lambda: self.run.lease.acquire(self.holder, self._lease_seconds),
                    "taking the lease",
                    self._patience,
                )
            except LeaseHeld as held:
                if loop.time() + held.remaining_seconds > deadline:
                    raise  # it has been renewed since we wait: its holder lives
                logger.warning(
                    "waiting for another trainer's lease to run out",
                    holder=held.holder,
                    seconds=round(held.remaining_seconds, 1),
                )
                await asyncio.sleep(held.remaining_seconds + 0.05)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / _RENEWALS_A_LEASE)
            await patiently(
                lambda: self.run.lease.renew(self.holder, self._epoch, self._lease_seconds),
                "renewing the lease",
                self._patience,
            )

    async def _abandon(self, branch: str) -> int:
        unfinished = await self.run.rollouts.in_states([State.QUEUING, State.RUNNING], _MOST_UNFINISHED)
        ended = 0
        for rollout in unfinished:
            try:
                slot, _ = parse_rollout_id(rollout.rollout_id)
            except IdInvalid:
                continue
            if slot.run == self.run.run and slot.branch != branch:
                await self.run.rollouts.end(
                    rollout.rollout_id, State.FAILED, error=f"branch {slot.branch} was left for {branch}"
                )
                ended += 1
        return ended
