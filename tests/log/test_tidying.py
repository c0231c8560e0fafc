"""What crashed processes leave behind, and how far others are behind."""

from __future__ import annotations

import pytest

from leyden.log import Log, RunLog, keys
from leyden.log.errors import IdTaken, RolloutMissing, RunMissing
from leyden.schemas import NewRollout, State
from tests.log.conftest import Begin


async def noted(log: Log, run: RunLog, *ids: str) -> None:
    """What a creator does before it dies."""
    k = keys.RunKeys(run.run)
    await log._scripts.run("begin_creation", [k.settings, k.claims], ids)
    for rollout_id in ids:
        await log._index.claim(rollout_id, run.run)


async def test_an_id_whose_creation_never_came_is_released_after_a_while(log: Log, run: RunLog, begin: Begin):
    await noted(log, run, "dead")
    other = await begin()
    assert await run.rollouts.release_abandoned(3600) == 0
    with pytest.raises(IdTaken):
        await other.rollouts.create(NewRollout(input=None, rollout_id="dead"))

    assert await run.rollouts.release_abandoned(-1) == 1

    with pytest.raises(RolloutMissing):
        await log.locate("dead")
    await other.rollouts.create(NewRollout(input=None, rollout_id="dead"))
    assert await other.rollouts.release_abandoned(-1) == 0
    assert (await log.locate("dead")).run == other.run


async def test_a_creator_that_was_held_up_does_not_use_the_nonce_that_was_given_up(log: Log, run: RunLog):
    await noted(log, run, "slow")
    old = (await log.locate("slow")).nonce
    await run.rollouts.release_abandoned(-1)
    k = keys.RunKeys(run.run)

    outcome, *_ = await log._scripts.run(
        "create_rollout",
        [k.rollout("slow"), k.events("slow"), k.queue, k.in_state(State.QUEUING), k.settings, k.freed, k.claims],
        ["slow", old, "digest", 1, "", b"", 1],
    )

    assert outcome == b"stale"
    await run.rollouts.create(NewRollout(input=None, rollout_id="slow"))
    assert (await log.locate("slow")).nonce != old


async def test_no_note_stays_of_what_was_created(log: Log, run: RunLog, wire):
    for _ in range(2):
        await run.rollouts.create_many(NewRollout(input=None, rollout_id=f"a{n}") for n in range(3))

    assert await wire.zcard(keys.RunKeys(run.run).claims) == 0


async def test_controllers_that_are_gone_are_forgotten_unless_they_hold_something(run: RunLog, wire):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    await run.queue.take("holds", 1)
    await run.queue.take("idle", 1)

    assert await run.queue.forget_idle(3600) == 0
    assert await run.queue.forget_idle(0) == 1

    known = await wire.xinfo_consumers(keys.RunKeys(run.run).queue, "controllers")
    assert [each["name"] for each in known] == ["holds"]
    assert await run.queue.take("idle", 1) == []


async def test_the_backlog_is_what_no_controller_has(run: RunLog, log: Log):
    assert (await run.queue.backlog()).waiting == 0
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=f"a{n}") for n in range(3))
    backlog = await run.queue.backlog()
    assert backlog.waiting == 3
    assert 0 <= backlog.oldest_seconds < 60

    (taken,) = await run.queue.take("c", 1)
    assert (await run.queue.backlog()).waiting == 2
    await run.rollouts.start(taken.rollout_id, "0", entry=taken.entry, consumer="c")
    await run.rollouts.end(taken.rollout_id, State.SUCCEEDED, entry=taken.entry, consumer="c")
    await run.rollouts.end("a1", State.FAILED)
    assert (await run.queue.backlog()).waiting == 1

    with pytest.raises(RunMissing):
        await log.run("none").queue.backlog()


async def test_a_reader_is_behind_by_what_it_was_not_given_and_what_it_has_not_acknowledged(run: RunLog):
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=f"a{n}") for n in range(3))
    for n in range(3):
        await run.rollouts.end(f"a{n}", State.SUCCEEDED)
    got = await run.completions.read("trainer", "t", 2, 1)
    await run.completions.acknowledge("trainer", got[:1])

    (lag,) = await run.completions.lags()

    assert (lag.reader, lag.not_given, lag.not_acknowledged) == ("trainer", 1, 1)
