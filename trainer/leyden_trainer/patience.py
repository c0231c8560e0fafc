"""Outliving a log that is away for a while: every operation of the trainer may be repeated, so it is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from leyden.log.errors import LogFull, LogUnavailable

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


async def patiently(ask: Callable[[], Awaitable[T]], doing: str, seconds: float) -> T:
    """Await what `ask` returns, again and again while the log is away or full, for at most `seconds`.

    Raises:
        LogUnavailable, LogFull: it still was; the note says what the trainer was doing.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await ask()
        except (LogUnavailable, LogFull) as error:
            if loop.time() + pause > deadline:
                error.add_note(f"while {doing}, for {seconds:g} s")
                raise
            logger.warning("the log is away, asking again", doing=doing, error=str(error), in_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
