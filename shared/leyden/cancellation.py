"""Ending a task that was asked to end while a library was not listening."""

from __future__ import annotations

import asyncio


def heed_cancellation() -> None:
    """End this task if it was cancelled and goes on all the same.

    redis-py loses a cancellation that comes while it finds its connection broken and makes another. A loop that waits
    on the log would never end then.

    Raises:
        CancelledError: the task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
