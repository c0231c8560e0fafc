"""Runs, their rules and their model servers, and the revision that tells replicas of a change."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from leyden.log import Log, RunBegan, RunEnded, RunLog, RunSettings, keys
from leyden.log.errors import RunMissing
from leyden.schemas import Model, NewRollout


async def revision(run: RunLog) -> int:
    await run.rollouts.create(NewRollout(input=None, rollout_id=f"{run.run}-r"))
    return (await run.calls.open(f"{run.run}-r", "0", "c", "gw", admin=True)).revision


async def test_runs_begin_once_and_are_listed_until_they_end(log: Log):
    assert await log.runs.begin("one", RunSettings()) is True
    assert await log.runs.begin("two", RunSettings()) is True
    assert await log.runs.begin("one", RunSettings()) is False
    assert await log.runs.names() == ["one", "two"]
    await log.runs.end("one")
    assert await log.runs.names() == ["two"]
    with pytest.raises(RunMissing):
        await log.runs.end("three")
    assert await log.runs.begin("one", RunSettings()) is False
    await log.run("one").rollouts.create(NewRollout(input=None))

    following = log.runs.follow()
    seen = [await anext(following) for _ in range(5)]
    assert seen == [RunBegan("one"), RunBegan("two"), RunBegan("one"), RunEnded("one"), RunBegan("one")]
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.02)
    await log.runs.begin("three", RunSettings())
    assert await asyncio.wait_for(waiting, 5) == RunBegan("three")


async def test_a_run_whose_keys_are_something_else_does_not_begin(log: Log, wire: Redis):
    await wire.set(keys.RunKeys("odd").queue, "not a stream")
    with pytest.raises(ResponseError, match=r"begin_run\.lua.*WRONGTYPE"):
        await log.runs.begin("odd", RunSettings())
    assert await log.runs.names() == []


async def test_rules_are_read_as_they_were_set(log: Log, run: RunLog):
    rules = RunSettings(model="m", when_paused="hold", readers=["trainer"], agents_may_reward=False)
    await run.set_settings(rules)
    assert await run.settings() == rules
    nowhere = log.run("nowhere")
    for ask in (nowhere.settings(), nowhere.set_settings(rules)):
        with pytest.raises(RunMissing):
            await ask


async def test_every_change_of_rules_or_models_raises_the_revision_and_is_announced(log: Log, run: RunLog):
    before, place = await revision(run), await run.control.last()
    rules = await run.settings()
    await log.runs.begin(run.run, rules)
    assert await revision(run) == before
    await log.runs.begin(run.run, rules.model_copy(update={"model": "m"}))
    await run.set_settings(rules)
    model = Model(model="m", endpoint="http://x/v1")
    changes = [await run.models.add([model]), await run.models.replace([model]), await run.models.clear()]

    assert changes == [before + 3, before + 4, before + 5]
    assert await revision(run) == before + 5
    kinds = [signal.kind for signal in await run.control.wait(place, 1)]
    assert kinds == ["settings", "settings", "models", "models", "models"]


async def test_models_are_kept_by_model_and_endpoint(log: Log, run: RunLog):
    one, two = Model(model="m", endpoint="http://x/v1"), Model(model="a\nb", endpoint="https://y/v1", version="b:7")
    await run.models.add([one, two])
    assert await run.models.all() == [two, one]
    newer = one.model_copy(update={"version": 3})
    await run.models.add([newer])
    assert await run.models.all() == [two, newer]
    await run.models.replace([newer])
    assert await run.models.all() == [newer]
    await run.models.clear()
    assert await run.models.all() == []
    with pytest.raises(RunMissing):
        await log.run("nowhere").models.add([one])
