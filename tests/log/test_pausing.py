"""A pause is exact, across all replicas."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from leyden.log import Log, RunLog, encode, keys
from leyden.log import replicas as replicas_module
from leyden.log.errors import DrainTimeout, RunMissing, RunPaused
from leyden.schemas import NewRollout, PauseRequest, State, StatusPatch
from tests.log.conftest import Begin

PAYLOAD = encode({})


async def test_the_state_says_what_was_asked_and_what_is_in_flight(run: RunLog):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    assert (await run.pause.state()).paused is False
    await run.calls.open("a", "0", "c", "gw", admin=True)

    paused = await run.pause.pause(PauseRequest(retry_after_seconds=30, reason="weights"))
    assert (paused.paused, paused.retry_after_seconds, paused.reason, paused.inflight) == (True, 30, "weights", 1)
    assert await run.pause.state() == paused
    again = await run.pause.pause()
    assert (again.retry_after_seconds, again.reason) == (5, None)
    with pytest.raises(DrainTimeout, match="1 calls are still in flight") as late:
        await run.pause.drained(0.05)
    assert late.value.inflight == 1

    resumed = await run.pause.resume()
    assert (resumed.paused, resumed.reason, resumed.inflight) == (False, None, 1)


async def test_a_run_that_has_not_begun_can_not_be_paused(log: Log):
    for ask in (log.run("nowhere").pause.pause, log.run("nowhere").pause.resume, log.run("nowhere").pause.state):
        with pytest.raises(RunMissing):
            await ask()


@given(
    clients=st.integers(2, 3),
    calls=st.integers(1, 12),
    pause_after=st.integers(0, 30),
    fate=st.lists(st.sampled_from(["close", "abandon", "recheck", "end"]), min_size=36, max_size=36),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_after_a_pause_no_call_opens_and_the_open_ones_drain_to_none(
    begin: Begin, other_log: Log, log: Log, clients: int, calls: int, pause_after: int, fate: list[str]
):
    run = await begin("trainer")
    logs = [run, other_log.run(run.run), log.run(run.run)][:clients]
    ids = [f"{run.run}.{n}" for n in range(calls)]
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=each) for each in ids)
    paused = asyncio.Event()
    opened: list[tuple[RunLog, str, str]] = []
    violations = []

    async def agent(mine: RunLog, number: int, rollout_id: str) -> None:
        call = f"{number}-{rollout_id}"
        was_paused = paused.is_set()
        try:
            await mine.calls.open(rollout_id, "0", call, f"gw{number}", admin=True)
        except RunPaused:
            return
        if was_paused:
            violations.append(call)
        opened.append((mine, rollout_id, call))

    async def pause() -> None:
        for _ in range(pause_after):
            await asyncio.sleep(0)
        await run.pause.pause()
        paused.set()
        await asyncio.gather(*(agent(mine, 10 + number, each) for number, mine in enumerate(logs) for each in ids))

    await asyncio.gather(pause(), *(agent(mine, number, each) for number, mine in enumerate(logs) for each in ids))
    assert violations == []
    assert (await run.pause.state()).inflight == len(opened)

    draining = asyncio.create_task(run.pause.drained(30))
    for (mine, rollout_id, call), how in zip(opened, fate, strict=False):
        if how == "close":
            await mine.calls.close(rollout_id, "0", call, PAYLOAD)
        elif how == "abandon":
            await mine.calls.abandon(rollout_id, "0", call)
        elif how == "recheck":
            # Lost already if another call's fate has ended its rollout.
            with pytest.raises(Exception, match=r"paused|no longer open"):
                await mine.calls.recheck(rollout_id, call)
        else:
            await mine.rollouts.end(rollout_id, State.FAILED)
    await draining
    assert (await run.pause.state()).inflight == 0


@pytest.mark.parametrize("how", ["close", "abandon", "recheck", "end", "start", "patch", "delete", "leave"])
async def test_who_waits_for_the_last_call_is_woken_by_it(run: RunLog, how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leyden.log.pause._LOOK_AGAIN_SECONDS", 60)
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    (taken,) = await run.queue.take("c", 1)
    await run.calls.open("a", "0", "c", "gw", admin=True)
    await run.pause.pause()
    draining = asyncio.create_task(run.pause.drained(30))
    await asyncio.sleep(0.05)
    assert not draining.done()
    match how:
        case "close":
            await run.calls.close("a", "0", "c", PAYLOAD)
        case "abandon":
            await run.calls.abandon("a", "0", "c")
        case "recheck":
            with pytest.raises(RunPaused):
                await run.calls.recheck("a", "c")
        case "end":
            await run.rollouts.end("a", State.FAILED)
        case "start":
            await run.rollouts.start("a", "1", entry=taken.entry, consumer="c")
        case "patch":
            await run.rollouts.patch("a", StatusPatch(last_attempt_id="1"))
        case "delete":
            await run.rollouts.delete("a")
        case "leave":
            await run.replicas.leave("gw")
    await asyncio.wait_for(draining, 10)


async def test_calls_of_a_replica_whose_heart_stopped_do_not_count_until_it_beats_again(
    run: RunLog, wire: Redis, monkeypatch: pytest.MonkeyPatch
):
    k = keys.RunKeys(run.run)
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    await run.calls.open("a", "0", "c1", "dead", admin=True)
    await run.calls.open("a", "0", "c2", "alive", admin=True)
    await run.pause.pause()
    assert (await run.pause.state()).inflight == 2
    silent = float(await wire.zscore(k.replicas, "dead") or 0) - replicas_module.REPLICA_TTL_SECONDS - 1
    await wire.zadd(k.replicas, {"dead": silent})

    assert (await run.pause.state()).inflight == 1
    await run.replicas.beat("dead")
    assert (await run.pause.state()).inflight == 2

    await wire.zadd(k.replicas, {"dead": silent - 25 * 3600})
    await run.replicas.beat("alive")
    assert await wire.zrange(k.replicas, 0, -1) == ["alive"]
    assert await wire.hexists(k.settings, "inflight:dead") is False
    await run.rollouts.end("a", State.FAILED)
    assert await wire.hget(k.settings, "inflight:alive") == "0"
    assert await wire.hexists(k.settings, "inflight:dead") is False


async def test_a_replica_that_leaves_is_forgotten(run: RunLog, wire: Redis):
    await run.replicas.beat("gw")
    await run.replicas.leave("gw")
    await run.replicas.leave("gw")
    assert await wire.zcard(keys.RunKeys(run.run).replicas) == 0
