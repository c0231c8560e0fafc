"""What nobody waits for: old rollouts of runs that nobody reads, and what crashed processes left behind.

Invariants:
- every replica does it, each now and then; doing it twice, or at once, changes nothing;
- a rollout is retired only in a run without readers, and only once its run's retention is over.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from leyden.log import Log, RunLog
from leyden.log.errors import LogFull, LogUnavailable, RunMissing, ServerUnsupported

_EVERY_SECONDS = 600.0
_CLAIMED_SECONDS = 3600.0
"""For how long an id may be noted for a creation that does not come."""

_IDLE_SECONDS = 3600.0
"""After how long a controller that holds nothing and takes nothing is forgotten."""

_log = structlog.get_logger("leyden.gateway.housekeeping")


async def keep_house(log: Log, every_seconds: float = _EVERY_SECONDS) -> None:
    """Tidy every run, until cancelled."""
    while True:
        # Replicas that were started together take turns.
        await asyncio.sleep(every_seconds * random.uniform(0.5, 1.5))
        try:
            for name in await log.runs.names():
                await tidy(log.run(name))
        except (LogUnavailable, LogFull, ServerUnsupported) as error:
            _log.warning("not tidied", error=str(error))


async def tidy(run: RunLog, *, claimed_seconds: float = _CLAIMED_SECONDS, idle_seconds: float = _IDLE_SECONDS) -> None:
    """Retire what a run keeps for nobody, release ids whose creation never came, forget controllers that are gone.

    Raises:
        LogUnavailable, LogFull
    """
    try:
        settings = await run.settings()
    except RunMissing:  # it was announced, and Redis was emptied since
        return
    retired = 0 if settings.readers else await run.rollouts.retire(settings.retention_seconds)
    released = await run.rollouts.release_abandoned(claimed_seconds)
    forgotten = await run.queue.forget_idle(idle_seconds)
    if retired or released or forgotten:
        _log.info("tidied", run=run.run, retired=retired, released=released, controllers_forgotten=forgotten)
