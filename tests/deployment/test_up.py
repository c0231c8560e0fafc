"""`leyden up` as users run it: everything on one machine, any part of which may be killed at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from redis.asyncio import Redis

from leyden import deployment
from leyden.log import Log
from leyden.schemas import LocalConfig, Model, NewRollout, Rollout, RolloutConfig, State
from tests.deployment.conftest import AGENT, CALLS, SECONDS, Up
from tests.gateway.stub import MODEL, StubModel

ROLLOUTS = 24


def _rollout(number: int) -> NewRollout:
    local = LocalConfig(command=[sys.executable, str(AGENT)], env_map={"QUESTION": "input.question"})
    return NewRollout(
        rollout_id=f"r{number}",
        input={"question": f"what is {number} + {number}"},
        config=RolloutConfig(local=local, timeout_seconds=60),
    )


async def _connect(up: Up) -> Log:
    known = deployment.load(up.folder)
    assert known is not None
    return Log.connect(known.redis_url)


async def _all_ended(log: Log) -> list[Rollout]:
    """Every rollout, once none is queued or running."""
    run = log.run("default")
    async with asyncio.timeout(SECONDS * 2):
        while True:
            try:
                _, total = await run.completions.page(0, 1000)
            except ConnectionError:
                total = 0
            if total >= ROLLOUTS:
                return await run.rollouts.in_states(list(State), 1000)
            await asyncio.sleep(0.2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["leyden_gateway", "leyden_controller", "redis"])
async def test_a_killed_service_costs_no_rollout_and_doubles_nothing(up: Up, model: StubModel, victim: str) -> None:
    log = await _connect(up)
    run = log.run("default")
    await run.models.add([Model(model=MODEL, endpoint=model.url)])
    await run.rollouts.create_many([_rollout(number) for number in range(ROLLOUTS)])
    async with asyncio.timeout(SECONDS):
        while not await run.rollouts.in_states([State.SUCCEEDED], 1):
            await asyncio.sleep(0.02)

    up.service(victim).kill()
    rollouts = await _all_ended(log)

    assert {rollout.status.state for rollout in rollouts} == {State.SUCCEEDED}, [
        rollout.status.error_message for rollout in rollouts
    ]
    assert len(rollouts) == ROLLOUTS
    completions, total = await run.completions.page(0, 1000)
    assert total == ROLLOUTS
    assert [completion.ordinal for completion in completions] == list(range(1, ROLLOUTS + 1))
    for rollout in rollouts:
        events = await run.events.of_attempt(rollout.rollout_id)
        delivered = [event for event in events if event.data.get("delivered") is not False]
        kinds = [event.event_type for event in delivered]
        # A gateway that was killed may have recorded an answer that it could not give any more: the agent asked again.
        assert kinds.count("reward") == 1
        assert kinds.count("model_request") >= CALLS
        if victim != "leyden_gateway":
            assert kinds.count("model_request") == CALLS
    await log.close()


async def test_what_is_on_record_is_on_disk_unless_told_otherwise(up: Up) -> None:
    known = deployment.load(up.folder)
    assert known is not None

    async with Redis.from_url(known.redis_url, decode_responses=True) as redis:
        settings = await redis.config_get("appendonly", "appendfsync")
    assert settings == {"appendonly": "yes", "appendfsync": "always"}


@pytest.mark.timeout(240)
async def test_after_a_restart_everything_is_found_and_goes_on(up: Up, model: StubModel) -> None:
    log = await _connect(up)
    run = log.run("default")
    await run.models.add([Model(model=MODEL, endpoint=model.url)])
    await run.rollouts.create_many([_rollout(number) for number in range(ROLLOUTS)])
    await asyncio.sleep(0.5)
    before = deployment.load(up.folder)

    await up.stop()
    await log.close()
    await up.start()
    log = await _connect(up)
    rollouts = await _all_ended(log)

    after = deployment.load(up.folder)
    assert before is not None
    assert after is not None
    assert before.key == after.key
    assert {rollout.status.state for rollout in rollouts} == {State.SUCCEEDED}
    await log.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_outlives_it(up: Up, model: StubModel, number: signal.Signals) -> None:
    log = await _connect(up)
    run = log.run("default")
    sleeper = LocalConfig(command=["sleep", "600"])
    await run.rollouts.create(NewRollout(rollout_id="long", input=1, config=RolloutConfig(local=sleeper)))
    async with asyncio.timeout(SECONDS):
        while not any(process.cmdline()[:1] == ["sleep"] for process in up.descendants()):
            await asyncio.sleep(0.05)
    started = up.descendants()

    await up.stop(number)
    await log.close()

    _, left = await asyncio.to_thread(psutil.wait_procs, started, timeout=30)
    assert left == []


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {"LEYDEN_REDIS_URL": "redis://127.0.0.1:1/0"}, "error: Redis is not available"),
        ((), {"LEYDEN_REDIS_URL": "nothing"}, "error: the Redis URL (LEYDEN_REDIS_URL) is not one: "),
        (("--host", "no.such.host.invalid"), {}, "the gateway can't listen on no.such.host.invalid"),
        (("--port", "70000"), {}, "Invalid value for '--port'"),
        ((), {"LEYDEN_LEASE_SECONDS": "soon"}, "LEYDEN_LEASE_SECONDS is 'soon': Input should be a valid number"),
        (
            (),
            {"LEYDEN_UPSTREAM_TRIES": "0"},
            "LEYDEN_UPSTREAM_TRIES is '0': Input should be greater than or equal to 1",
        ),
    ],
)
def test_what_it_cannot_start_with_is_said_at_once_and_by_name(
    tmp_path: Path, unused_tcp_port, arguments, environment, said
):
    given = {name: value for name, value in os.environ.items() if not name.startswith(("LEYDEN_", "AGL_"))}
    given |= {"COLUMNS": "400", "LEYDEN_PORT": str(unused_tcp_port), **environment}
    ended = subprocess.run(
        [sys.executable, "-m", "leyden.cli.main", "up", "--data-dir", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        env=given,
        timeout=50,
        check=False,
    )
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
