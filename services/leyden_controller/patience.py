"""Waiting for a log that is away, with a limit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from leyden.log.errors import LogFull, LogUnavailable

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0

Result = TypeVar("Result")

log = structlog.get_logger()


class Patience:
    """Repeats what can be repeated until the log is back or `seconds` are over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def through(self, what: str, ask: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `ask`, which must be safe to repeat; `what` names it in the process's log.

        Raises:
            LogUnavailable, LogFull: the log has been away for too long.
        """
        since: float | None = None
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                result = await ask()
            except (LogUnavailable, LogFull) as error:
                now = time.monotonic()
                if since is None:
                    since = now
                    log.warning("the log is away", what=what, error=str(error), deadline_seconds=self.seconds)
                if now - since >= self.seconds:
                    log.error("the log stayed away", what=what, error=str(error), seconds=round(now - since, 1))
                    raise
                await asyncio.sleep(min(delay * random.uniform(0.75, 1.25), self.seconds - (now - since)))
                delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
            else:
                if since is not None:
                    log.info("the log is back", what=what, seconds=round(time.monotonic() - since, 1))
                return result
