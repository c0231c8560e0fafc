"""One trainer a run, and what it decided, once."""

from __future__ import annotations

import asyncio

import pytest

from leyden.log import Log, RunLog
from leyden.log.errors import LeaseHeld, LeaseLost, RunMissing
from leyden.schemas import Model, NewRollout, PauseRequest, State


async def test_one_trainer_holds_the_lease_until_it_runs_out(run: RunLog):
    first = await run.lease.acquire("one", 0.4)
    with pytest.raises(LeaseHeld, match="has a trainer, one") as held:
        await run.lease.acquire("two", 5)
    assert 0 < held.value.remaining_seconds <= 0.4
    await run.lease.renew("one", first, 0.4)
    await asyncio.sleep(0.45)

    second = await run.lease.acquire("two", 5)
    assert second == first + 1
    for lost in (run.lease.renew("one", first, 5), run.lease.release("one", first), run.lease.renew("two", first, 5)):
        with pytest.raises(LeaseLost, match="now held by two"):
            await lost


async def test_a_released_lease_is_free_at_once_and_a_holder_may_take_its_own_again(run: RunLog):
    first = await run.lease.acquire("one", 60)
    second = await run.lease.acquire("one", 60)
    assert second == first + 1
    with pytest.raises(LeaseLost):
        await run.lease.renew("one", first, 60)
    await run.lease.release("one", second)
    assert await run.lease.acquire("two", 60) == second + 1


async def test_of_many_who_want_it_one_gets_it(run: RunLog, other_log: Log):
    wants = [log.lease.acquire(f"t{n}", 60) for n in range(10) for log in (run, other_log.run(run.run))]
    got = await asyncio.gather(*wants, return_exceptions=True)
    # The same name stands for the same trainer, which may take its lease again.
    assert {type(each) for each in got} == {int, LeaseHeld}
    assert sum(isinstance(each, int) for each in got) <= 2


async def test_a_run_that_has_not_begun_has_no_lease(log: Log):
    with pytest.raises(RunMissing):
        await log.run("nowhere").lease.acquire("one", 5)
    with pytest.raises(LeaseLost, match="nobody"):
        await log.run("nowhere").lease.renew("one", 1, 5)


async def test_a_step_is_recorded_once_by_the_holder_of_the_lease(run: RunLog):
    epoch = await run.lease.acquire("one", 60)
    entry = await run.steps.append("batch", {"rollouts": ["a"]}, epoch=epoch, step_id="s1")
    assert await run.steps.append("batch", {"rollouts": ["other"]}, epoch=epoch, step_id="s1") == entry
    await run.lease.release("one", epoch)
    later = await run.lease.acquire("two", 60)
    with pytest.raises(LeaseLost, match=f"epoch {epoch} was replaced by two"):
        await run.steps.append("batch", {}, epoch=epoch, step_id="s2")
    assert await run.steps.append("batch", {}, epoch=later, step_id="s1") == entry
    await run.steps.append("update", {}, epoch=later, step_id="s2")

    assert [(step.kind, step.step_id, step.epoch, step.data) for step in await run.steps.read()] == [
        ("batch", "s1", epoch, {"rollouts": ["a"]}),
        ("update", "s2", later, {}),
    ]


async def test_steps_can_be_followed(run: RunLog):
    epoch = await run.lease.acquire("one", 60)
    await run.steps.append("batch", {}, epoch=epoch, step_id="s1")
    following = run.steps.follow()
    assert (await anext(following)).step_id == "s1"
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.02)
    await run.steps.append("batch", {}, epoch=epoch, step_id="s2")
    assert (await asyncio.wait_for(waiting, 5)).step_id == "s2"


async def test_a_trainer_that_was_replaced_changes_nothing_any_more(run: RunLog):
    await run.rollouts.create(NewRollout(rollout_id="a", input=1))
    await run.rollouts.end("a", State.SUCCEEDED)
    read = await run.completions.read("trainer", "trainer", 10, 1)
    stale = await run.lease.acquire("one", 60)
    await run.lease.release("one", stale)
    epoch = await run.lease.acquire("two", 60)
    server = Model(model="m", endpoint="http://127.0.0.1:1/v1")
    await run.models.replace([server], epoch=epoch)
    await run.pause.pause(epoch=epoch)

    for refused in (
        run.models.replace([], epoch=stale),
        run.pause.resume(epoch=stale),
        run.pause.pause(PauseRequest(reason="stale"), epoch=stale),
        run.completions.acknowledge("trainer", read, epoch=stale),
    ):
        with pytest.raises(LeaseLost, match=f"epoch {stale}"):
            await refused

    assert await run.models.all() == [server]
    assert (await run.pause.state()).paused
    assert (await run.pause.state()).reason is None
    assert await run.completions.pending("trainer", "trainer") == read
    assert await run.completions.acknowledge("trainer", read, epoch=epoch) == 1
