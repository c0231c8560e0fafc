"""The thread in which the trainer talks to the log.

verl's trainer is synchronous and busy for long stretches; leases, completions and events are not. All that is
asynchronous in the trainer runs in one event loop in one thread, and the main thread asks it for what it needs.

Invariants:
- everything that the main thread waits for has a deadline, and its error says what was waited for;
- a background task that fails stops the trainer: its error is raised by the next call, and handed to `on_failure`.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

T = TypeVar("T")

_CLOSE_SECONDS = 10.0


class LogThreadTimeout(TimeoutError):
    """The log did not answer in time."""


class LogThread:
    """Runs coroutines for other threads; start it once, close it once."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda error: None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="leyden-log", daemon=True)
        self._background: set[Future[Any]] = set()
        self._failure: BaseException | None = None
        self._on_failure = on_failure
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], doing: str, timeout_seconds: float) -> T:
        """Run `work` and return what it returns; `doing` completes the sentence "timed out …".

        Raises:
            LogThreadTimeout: it took longer than `timeout_seconds`; it was cancelled.
        """
        if self._failure is not None:
            work.close()
            raise self._failure
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_seconds)
        except FutureTimeout:
            if future.done():
                raise  # the work's own timeout, which says more
            future.cancel()
            raise LogThreadTimeout(f"timed out after {timeout_seconds:g} s {doing}") from None

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in the background until it ends or the thread is closed."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._background.add(future)
        future.add_done_callback(self._ended)

    def close(self, then: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel what still runs, run `then`, and stop the thread; closing a closed one changes nothing."""
        if not self._thread.is_alive():
            return
        # What does not take its cancellation dies with the process: the thread is a daemon.
        with contextlib.suppress(FutureTimeout):
            asyncio.run_coroutine_threadsafe(_end(then), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    def _ended(self, future: "Future[Any]") -> None:
        self._background.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if error is not None and self._failure is None:
            self._failure = error
            self._on_failure(error)


async def _end(then: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    if then is not None:
        await then()
