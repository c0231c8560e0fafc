"""Several controllers on one log, any of which may be told to stop or be killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

import psutil
import pytest

from leyden.log import Log, RunSettings
from leyden.log.errors import LeaseLost
from leyden.redis_server import RedisServer
from leyden.schemas import State
from leyden_controller import history
from leyden_controller.runner import Cause, Ending
from tests.controller.support import agents, asked, causes, living, outcomes, shell, started, until

SHORT_LEASE = 2
"""Seconds after which a controller takes over from one that shows no sign of life."""

SAYS_THAT_IT_STARTED = 'echo "$AGL_EVENT_URL" | sed "s,.*/rollouts/,,; s,/events,," >> starts'


def starts(folder: Path) -> list[str]:
    """The attempts whose processes were started, as `rollout/attempt/N`."""
    file = folder / "starts"
    return file.read_text().split() if file.exists() else []


async def test_two_controllers_share_rollouts_and_start_each_once(run, start_controller, tmp_path):
    ids = {f"r{n}" for n in range(200)}
    await asyncio.gather(start_controller(slots=8), start_controller(slots=8))
    await run.rollouts.create_many(asked(each, shell(SAYS_THAT_IT_STARTED), cwd=str(tmp_path)) for each in ids)

    found = await outcomes(run, 200, seconds=100)

    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert sorted(starts(tmp_path)) == sorted(f"{each}/attempt/0" for each in ids)
    by = {entry.notes["by"] for each in ids for entry in await run.events.entries(each) if entry.kind == "started"}
    assert len(by) == 2


async def test_a_controller_that_is_killed_leaves_no_process_and_another_runs_its_rollouts_anew(
    run, start_controller, tmp_path
):
    first = await start_controller()
    hiding = "setsid sh -c 'setsid sleep 60 & sleep 60' & (sleep 60 &); "
    waiting = "case $AGL_EVENT_URL in */attempt/0/*) sleep 60;; esac"
    await run.rollouts.create_many(
        asked(f"r{n}", shell(f"{SAYS_THAT_IT_STARTED}; {hiding} {waiting}"), cwd=str(tmp_path)) for n in range(4)
    )
    await until(lambda: len(starts(tmp_path)) == 4 and len(agents(tmp_path, "sleep")) == 16, "the agents run")
    processes = first.descendants()
    assert len(processes) > 4 * 5

    await first.kill()

    await until(lambda: not living(processes), "nothing of it is left", seconds=10)
    assert not agents(tmp_path)
    await start_controller(lease_seconds=SHORT_LEASE)
    found = await outcomes(run, 4)
    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert sorted(starts(tmp_path)) == sorted(f"r{n}/attempt/{k}" for n in range(4) for k in range(2))


async def test_a_controller_that_dies_before_it_records_a_start_costs_no_attempt(run, start_controller, tmp_path):
    await run.rollouts.create(asked("a", shell(SAYS_THAT_IT_STARTED), cwd=str(tmp_path)))
    assert await run.queue.take("dead", 1)

    await start_controller(lease_seconds=SHORT_LEASE)

    assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED
    assert starts(tmp_path) == ["a/attempt/0"]


async def test_a_controller_that_dies_between_recording_a_start_and_starting_costs_one(run, start_controller, tmp_path):
    await run.rollouts.create(asked("a", shell(SAYS_THAT_IT_STARTED), cwd=str(tmp_path)))
    (taken,) = await run.queue.take("dead", 1)
    await run.rollouts.start("a", "0", entry=taken.entry, consumer="dead")

    await start_controller(lease_seconds=SHORT_LEASE)

    assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED
    assert starts(tmp_path) == ["a/attempt/1"]


async def test_a_controller_that_dies_after_its_agent_ended_and_before_it_says_so_costs_one(
    run, start_controller, tmp_path
):
    first = await start_controller()
    await run.rollouts.create(asked("a", shell(f"{SAYS_THAT_IT_STARTED}; sleep 0.5"), cwd=str(tmp_path)))
    await until(lambda: agents(tmp_path, "sleep"), "the agent runs")

    first.signal(signal.SIGSTOP)
    await until(lambda: not agents(tmp_path), "the agent has ended")
    await first.kill()

    await start_controller(lease_seconds=SHORT_LEASE)
    assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED
    assert starts(tmp_path) == ["a/attempt/0", "a/attempt/1"]


async def test_a_controller_that_dies_between_a_failure_and_its_outcome_leaves_it_to_the_next(
    run, start_controller, tmp_path
):
    await run.rollouts.create(asked("a", shell(SAYS_THAT_IT_STARTED), cwd=str(tmp_path)))
    (taken,) = await run.queue.take("dead", 1)
    await run.rollouts.start("a", "0", entry=taken.entry, consumer="dead")
    await history.record(run, "a", "0", Ending(Cause.FAILED, "exited with code 9", "words"))

    await start_controller(lease_seconds=SHORT_LEASE)

    assert (await outcomes(run, 1))["a"].state is State.FAILED
    assert (await run.rollouts.get("a")).status.error_message == "exited with code 9: words"
    assert starts(tmp_path) == []


async def test_controllers_that_die_again_and_again_use_up_the_infra_attempts(run, start_controller):
    await run.rollouts.create(asked("a", "true", max_infra_attempts=3))
    for attempt in "012":
        consumer = f"dead-{attempt}"
        (taken,) = await run.queue.take(consumer, 1) or await run.queue.take_over(consumer, 0, 1)
        await run.rollouts.start("a", attempt, entry=taken.entry, consumer=consumer)

    await start_controller(lease_seconds=SHORT_LEASE)

    assert (await outcomes(run, 1))["a"].state is State.FAILED
    assert (await run.rollouts.get("a")).status.error_message == "its controller was gone (attempt 3 of 3)"


async def test_a_controller_that_stood_still_for_longer_than_its_lease_kills_what_is_no_longer_its_own(
    run, start_controller, tmp_path
):
    first = await start_controller(lease_seconds=SHORT_LEASE)
    await run.rollouts.create(asked("a", shell(f"{SAYS_THAT_IT_STARTED}; sleep 8"), cwd=str(tmp_path)))
    await until(lambda: agents(tmp_path, "sleep"), "the agent runs")
    first.signal(signal.SIGSTOP)
    await start_controller(lease_seconds=SHORT_LEASE)
    await until(lambda: len(starts(tmp_path)) == 2, "another has taken over")

    first.signal(signal.SIGCONT)

    await until(lambda: len(agents(tmp_path, "sleep")) == 1, "the first agent is gone", seconds=6)
    assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED
    assert await started(run, "a") == ["0", "1"]
    assert await causes(run, "a") == []


async def test_a_dead_controllers_rollouts_do_not_wait_for_the_queue_to_be_empty(run, start_controller, tmp_path):
    await run.rollouts.create(asked("old", "true"))
    assert await run.queue.take("dead", 1)
    await run.rollouts.create_many(asked(f"r{n}", "sleep 0.5") for n in range(30))
    await asyncio.sleep(SHORT_LEASE)

    await start_controller(slots=1, lease_seconds=SHORT_LEASE)

    async with asyncio.timeout(10):
        while "old" not in {each.rollout_id for each in (await run.completions.page(0, 100))[0]}:
            await asyncio.sleep(0.05)
    assert (await run.completions.page(0, 100))[1] < 10


async def test_sigterm_lets_agents_finish_for_the_grace_time_and_hands_the_others_back(run, start_controller, tmp_path):
    first = await start_controller(slots=4, shutdown_grace_seconds=3, lease_seconds=60)
    work = f"{SAYS_THAT_IT_STARTED}; case $AGL_EVENT_URL in *long/attempt/0/*) sleep 60;; *) sleep 1;; esac"
    await run.rollouts.create_many(
        asked(each, shell(work), cwd=str(tmp_path), max_infra_attempts=1) for each in ("short", "long")
    )
    await until(lambda: len(agents(tmp_path, "sleep")) == 2, "both agents run")

    first.signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    await run.rollouts.create(asked("late", shell(work), cwd=str(tmp_path)))

    assert (await outcomes(run, 1))["short"].state is State.SUCCEEDED
    assert await first.exited() == 0
    assert not agents(tmp_path)
    assert len(starts(tmp_path)) == 2
    assert await causes(run, "long") == ["stopped"]

    await start_controller(lease_seconds=60)
    found = await outcomes(run, 3)
    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert await started(run, "long") == ["0", "1"]
    assert await started(run, "late") == ["0"]


async def test_a_second_signal_lets_no_agent_finish(run, start_controller, tmp_path):
    first = await start_controller(shutdown_grace_seconds=60)
    await run.rollouts.create(asked("a", "sleep 60"))
    await until(lambda: agents(tmp_path), "the agent runs")

    first.signal(signal.SIGINT)
    await asyncio.sleep(0.2)
    first.signal(signal.SIGINT)

    assert await asyncio.wait_for(first.exited(), 10) == 0
    assert await causes(run, "a") == ["stopped"]


@pytest.mark.parametrize("seed", range(2))
async def test_controllers_that_are_killed_at_any_moment_lose_and_double_nothing(run, start_controller, tmp_path, seed):
    chance = random.Random(seed)
    ids = [f"r{n}" for n in range(24)]
    await run.rollouts.create_many(
        asked(
            each,
            shell(f"{SAYS_THAT_IT_STARTED}; sleep 0.{chance.randrange(5)}"),
            cwd=str(tmp_path),
            max_infra_attempts=20,
        )
        for each in ids
    )
    done = asyncio.create_task(outcomes(run, len(ids), seconds=100))
    for _ in range(3):
        controllers = await asyncio.gather(*(start_controller(slots=3, lease_seconds=SHORT_LEASE) for _ in range(2)))
        await asyncio.sleep(chance.uniform(1, 3))
        for controller in controllers:
            with contextlib.suppress(psutil.NoSuchProcess):
                left = controller.descendants()
                await controller.kill()
                await until(lambda left=left: not living(left), "nothing of it is left", seconds=10)
    await start_controller(slots=8, lease_seconds=SHORT_LEASE)

    found = await done

    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert len(starts(tmp_path)) == len(set(starts(tmp_path)))
    for each in ids:
        attempts = await started(run, each)
        assert attempts == [str(n) for n in range(len(attempts))]
        assert [entry.kind for entry in await run.events.entries(each)].count("ended") == 1


@pytest.fixture
async def own_server(tmp_path):
    """A server that the test may kill, and its log."""
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    log = Log.connect(server.url)
    await log.runs.begin("test", RunSettings(readers=["trainer"]))
    yield server, log
    await log.close()
    server.stop()


async def test_agents_run_on_while_the_log_is_away_and_their_outcomes_are_told_when_it_is_back(
    own_server, start_controller, tmp_path
):
    server, log = own_server
    run = log.run("test")
    controller = await start_controller(redis_url=server.url)
    await run.rollouts.create(asked("ends", shell(f"{SAYS_THAT_IT_STARTED}; sleep 1.5"), cwd=str(tmp_path)))
    await run.rollouts.create(asked("runs", shell(f"{SAYS_THAT_IT_STARTED}; sleep 6"), cwd=str(tmp_path)))
    await until(lambda: len(agents(tmp_path, "sleep")) == 2, "the agents run")

    server.kill()
    await until(lambda: len(agents(tmp_path, "sleep")) == 1, "one agent has ended meanwhile")
    await asyncio.sleep(1)
    assert agents(tmp_path, "sleep")
    server.start()
    await run.rollouts.create(asked("later", shell(SAYS_THAT_IT_STARTED), cwd=str(tmp_path)))

    found = await outcomes(run, 3)
    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert sorted(starts(tmp_path)) == ["ends/attempt/0", "later/attempt/0", "runs/attempt/0"]
    said = controller.output.read_text()
    assert "the log is away" in said
    assert "the log is back" in said


async def test_a_controller_gives_up_when_the_log_stays_away(own_server, start_controller, tmp_path):
    server, log = own_server
    controller = await start_controller(redis_url=server.url, redis_deadline_seconds=1)
    await log.run("test").rollouts.create(asked("a", "sleep 60"))
    await until(lambda: agents(tmp_path), "the agent runs")

    server.kill()

    assert await controller.exited() == 1
    assert not agents(tmp_path)
    assert "the log stayed away" in controller.output.read_text()


async def test_a_controller_waits_for_a_log_that_is_not_there_yet(own_server, start_controller, tmp_path):
    server, log = own_server
    await log.run("test").rollouts.create(asked("a", "true"))
    server.kill()
    await start_controller(redis_url=server.url)
    await asyncio.sleep(1)

    server.start()

    assert (await outcomes(log.run("test"), 1))["a"].state is State.SUCCEEDED


async def test_a_log_that_lost_everything_ends_what_ran_and_begins_anew(log, run, redis, start_controller, tmp_path):
    controller = await start_controller()
    await run.rollouts.create(asked("a", "sleep 60"))
    await until(lambda: agents(tmp_path), "the agent runs")

    await redis.flushall()
    await until(lambda: not agents(tmp_path), "the agent is gone")
    await log.runs.begin("test", RunSettings(readers=["trainer"]))
    await run.rollouts.create(asked("b", "true"))

    assert (await outcomes(run, 1))["b"].state is State.SUCCEEDED
    assert controller.process.returncode is None


async def test_who_has_lost_a_rollout_can_not_end_it(run):
    await run.rollouts.create(asked("a", "true"))
    (taken,) = await run.queue.take("first", 1)
    await run.rollouts.start("a", "0", entry=taken.entry, consumer="first")
    await run.queue.take_over("second", 0, 1)

    with pytest.raises(LeaseLost):
        await run.rollouts.end("a", State.SUCCEEDED, entry=taken.entry, consumer="first")
