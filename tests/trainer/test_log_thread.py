import asyncio
import threading

import pytest

from leyden.log.errors import LogUnavailable
from leyden_trainer.log_thread import LogThread, LogThreadTimeout
from leyden_trainer.patience import patiently


@pytest.fixture
def thread():
    thread = LogThread()
    yield thread
    thread.close()


async def answer(value):
    await asyncio.sleep(0)
    return value


async def fail(error: BaseException):
    raise error


def test_a_call_returns_what_the_work_returns_and_raises_what_it_raises(thread: LogThread):
    assert thread.call(answer(3), "asking", 5) == 3
    with pytest.raises(KeyError):
        thread.call(fail(KeyError("x")), "asking", 5)


def test_a_call_that_takes_too_long_says_what_it_was_doing_and_is_cancelled(thread: LogThread):
    cancelled = threading.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(LogThreadTimeout, match=r"timed out after 0\.05 s reading rollout r1"):
        thread.call(forever(), "reading rollout r1", 0.05)
    assert cancelled.wait(5)


def test_a_timeout_of_the_works_own_is_kept(thread: LogThread):
    with pytest.raises(TimeoutError, match="drained too slowly"):
        thread.call(fail(TimeoutError("drained too slowly")), "draining", 5)


def test_a_background_failure_is_handed_on_and_ends_every_later_call():
    failed, failures = threading.Event(), []

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    thread = LogThread(note)
    thread.spawn(fail(RuntimeError("the feed broke")))

    assert failed.wait(5)
    with pytest.raises(RuntimeError, match="the feed broke"):
        thread.call(answer(1), "asking", 5)
    assert len(failures) == 1
    thread.close()


def test_closing_ends_what_runs_in_the_background_and_may_be_repeated():
    thread, ended = LogThread(), threading.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread.spawn(forever())
    thread.close()
    thread.close()

    assert ended.wait(5)


async def test_a_log_that_comes_back_is_asked_again():
    answers = [LogUnavailable("away"), LogUnavailable("away"), 7]

    async def ask():
        match answers.pop(0):
            case LogUnavailable() as error:
                raise error
            case value:
                return value

    assert await patiently(ask, "asking", 5) == 7


async def test_a_log_that_stays_away_is_given_up_and_the_note_says_what_for():
    with pytest.raises(LogUnavailable) as raised:
        await patiently(lambda: fail(LogUnavailable("away")), "creating 8 rollouts", 0.3)
    assert raised.value.__notes__ == ["while creating 8 rollouts, for 0.3 s"]


async def test_other_errors_are_not_repeated():
    with pytest.raises(KeyError):
        await patiently(lambda: fail(KeyError("x")), "asking", 60)
