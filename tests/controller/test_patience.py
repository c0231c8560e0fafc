"""Waiting for a log that is away."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from leyden.log.errors import LogFull, LogUnavailable, RolloutMissing
from leyden_controller.patience import Patience


class Away:
    """Something that fails a number of times, and then gives `done`."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times = times
        self.error = error

    async def __call__(self) -> str:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return "done"


@pytest.mark.parametrize("error", [LogUnavailable("gone"), LogFull("full")])
async def test_what_fails_for_a_while_is_asked_again_and_said_once(error):
    with capture_logs() as said:
        assert await Patience(10).through("end r", Away(3, error)) == "done"

    assert [(entry["event"], entry["what"]) for entry in said] == [
        ("the log is away", "end r"),
        ("the log is back", "end r"),
    ]


async def test_it_ends_after_its_time_and_says_so():
    with capture_logs() as said, pytest.raises(LogUnavailable, match="gone"):
        await Patience(0.3).through("end r", Away(1000, LogUnavailable("gone")))

    assert said[-1]["event"] == "the log stayed away"
    assert said[-1]["log_level"] == "error"


async def test_any_other_error_is_not_waited_out():
    away = Away(1, RolloutMissing("r"))
    with pytest.raises(RolloutMissing):
        await Patience(10).through("end r", away)
    assert away.times == 0


async def test_a_redis_url_that_is_none_is_refused_at_the_start_in_one_line(start_controller):
    controller = await start_controller(redis_url="redis://:hush@127.0.0.1:1/0?foo=1")

    assert await controller.exited() == 2
    (line,) = controller.output.read_text().splitlines()
    assert line.startswith("leyden controller: ")
    assert "'foo' is not an option of it" in line
    assert "hush" not in line
