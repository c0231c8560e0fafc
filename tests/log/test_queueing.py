"""The queue hands each rollout to one controller, who holds it until it ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from leyden.log import Log, RunLog
from leyden.log.errors import LeaseLost, RolloutFinished, RolloutMissing, RunMissing
from leyden.schemas import NewRollout, State, StatusPatch


async def queue(run: RunLog, *ids: str) -> None:
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=each) for each in ids)


async def test_entries_go_to_one_controller_each(run: RunLog, other_log: Log):
    await queue(run, *(f"r{n}" for n in range(30)))
    elsewhere = other_log.run(run.run).queue

    batches = await asyncio.gather(*(q.take(c, 4) for _ in range(4) for q, c in ((run.queue, "c1"), (elsewhere, "c2"))))

    taken = [each.rollout_id for batch in batches for each in batch]
    assert sorted(taken) == sorted(f"r{n}" for n in range(30))
    assert await run.queue.take("c3", 5) == []


async def test_waiting_for_the_queue_takes_nothing_and_ends_when_it_grows(run: RunLog):
    place = await run.queue.wait("0-0", 0.01)
    assert place == "0-0"
    waiting = asyncio.create_task(run.queue.wait(place, 5))
    await asyncio.sleep(0.05)
    await queue(run, "a")

    grown = await waiting
    assert grown > place
    assert len(await run.queue.take("c", 1)) == 1
    await run.rollouts.end("a", State.FAILED)
    assert await run.queue.wait(grown, 0.01) == grown


async def test_a_run_that_has_not_begun_has_no_queue(log: Log):
    nowhere = log.run("nowhere").queue
    with pytest.raises(RunMissing):
        await nowhere.take("c", 1)
    with pytest.raises(RunMissing):
        await nowhere.take_over("c", 0, 1)
    with pytest.raises(RunMissing):
        await nowhere.leave("c")


async def test_a_started_rollout_runs_and_stays_with_its_controller(run: RunLog):
    await queue(run, "a")
    (taken,) = await run.queue.take("c", 1)

    started = await run.rollouts.start("a", "1", entry=taken.entry, consumer="c", job_name="job-1")

    assert (started.status.state, started.status.last_attempt_id) == (State.RUNNING, "1")
    assert started.status.k8s_job_name == "job-1"
    assert await run.rollouts.start("a", "1", entry=taken.entry, consumer="c") == started
    assert await run.queue.renew("c", [taken.entry]) == set()
    again = await run.rollouts.start("a", "2", entry=taken.entry, consumer="c")
    assert (again.status.last_attempt_id, again.status.version) == ("2", 3)
    assert [each.rollout_id for each in await run.rollouts.in_states([State.RUNNING], 5)] == ["a"]


async def test_only_the_holder_starts_a_rollout_and_only_one_that_can_start(run: RunLog):
    await queue(run, "a", "b", "c")
    a, b, c = await run.queue.take("c1", 3)

    with pytest.raises(LeaseLost, match="rollout a is held by c1, not by c2"):
        await run.rollouts.start("a", "0", entry=a.entry, consumer="c2")
    with pytest.raises(LeaseLost):
        await run.rollouts.start("a", "0", entry=b.entry, consumer="c1")
    with pytest.raises(LeaseLost, match="nobody"):
        await run.rollouts.start("a", "0", entry="1-1", consumer="c1")
    with pytest.raises(LeaseLost, match="nobody"):
        await run.rollouts.start("a", "0", entry="", consumer="c1")
    await run.rollouts.end("b", State.FAILED)
    with pytest.raises(RolloutFinished, match="ended as failed"):
        await run.rollouts.start("b", "0", entry=b.entry, consumer="c1")
    await run.rollouts.delete("c")
    with pytest.raises(RolloutMissing):
        await run.rollouts.start("c", "0", entry=c.entry, consumer="c1")
    with pytest.raises(RolloutMissing):
        await run.rollouts.start("none", "0", entry=c.entry, consumer="c1")


async def test_what_nobody_renews_is_taken_over_and_its_former_holder_learns_it(run: RunLog):
    await queue(run, "a", "b")
    a, b = await run.queue.take("dead", 2)
    await asyncio.sleep(0.3)
    assert await run.queue.renew("dead", [b.entry]) == set()

    (over,) = await run.queue.take_over("alive", 0.25, 5)

    assert over == a
    assert await run.queue.renew("dead", [a.entry, b.entry, "1-1"]) == {a.entry, "1-1"}
    assert await run.queue.renew("dead", []) == set()
    with pytest.raises(LeaseLost, match="held by alive"):
        await run.rollouts.end("a", State.SUCCEEDED, entry=a.entry, consumer="dead")
    with pytest.raises(LeaseLost, match="held by alive"):
        await run.queue.hand_back("dead", a.entry, "a")
    assert await run.rollouts.end("a", State.SUCCEEDED, entry=a.entry, consumer="alive") == 1


async def test_two_controllers_take_over_each_entry_once(run: RunLog, other_log: Log):
    await queue(run, *(f"r{n}" for n in range(20)))
    await run.queue.take("dead", 20)
    await asyncio.sleep(0.05)

    got = await asyncio.gather(
        run.queue.take_over("c1", 0.04, 100), other_log.run(run.run).queue.take_over("c2", 0.04, 100)
    )

    assert sorted(each.rollout_id for batch in got for each in batch) == sorted(f"r{n}" for n in range(20))
    assert len(await run.queue.take_over("c3", 0, 7)) == 7


async def test_what_is_handed_back_goes_to_the_end_of_the_queue_and_to_anyone(run: RunLog):
    await queue(run, "a", "b")
    (a,) = await run.queue.take("c1", 1)
    await run.rollouts.start("a", "0", entry=a.entry, consumer="c1")

    await run.queue.hand_back("c1", a.entry, "a")
    await run.queue.hand_back("c1", a.entry, "a")

    assert [each.rollout_id for each in await run.queue.take("c2", 5)] == ["b", "a"]
    assert await run.queue.renew("c1", [a.entry]) == {a.entry}
    for other in ("1-1", ""):
        with pytest.raises(LeaseLost, match="nobody"):
            await run.queue.hand_back("c1", other, "a")
    assert await run.queue.renew("c1", [""]) == {""}
    with pytest.raises(LeaseLost):
        await run.queue.hand_back("c1", a.entry, "none")


async def test_a_handed_back_attempt_is_fenced_when_the_next_controller_starts_another(run: RunLog):
    await queue(run, "a")
    (a,) = await run.queue.take("c1", 1)
    await run.rollouts.start("a", "0", entry=a.entry, consumer="c1")
    await run.queue.hand_back("c1", a.entry, "a")
    (again,) = await run.queue.take("c2", 1)

    assert (await run.rollouts.start("a", "1", entry=again.entry, consumer="c2")).status.last_attempt_id == "1"


async def test_a_rollout_that_leaves_queuing_has_no_entry_any_more(run: RunLog):
    await queue(run, "patched", "ended", "deleted", "failed")
    entries = {each.rollout_id: each.entry for each in await run.queue.take("c", 10)}

    await run.rollouts.patch("patched", StatusPatch(state=State.RUNNING))
    await run.rollouts.end("ended", State.SUCCEEDED)
    await run.rollouts.delete("deleted")
    await run.rollouts.patch("failed", StatusPatch(state=State.FAILED))

    assert await run.queue.renew("c", list(entries.values())) == set(entries.values())
    assert await run.queue.take_over("c2", 0, 10) == []


async def test_whoever_runs_a_cancelled_rollout_is_told_at_once(run: RunLog):
    await queue(run, "ended", "deleted", "own")
    taken = {each.rollout_id: each.entry for each in await run.queue.take("c", 10)}
    for each, entry in taken.items():
        await run.rollouts.start(each, "0", entry=entry, consumer="c")
    place = await run.control.last()

    await run.rollouts.end("own", State.SUCCEEDED, entry=taken["own"], consumer="c")
    await run.rollouts.end("ended", State.FAILED, error="cancelled by hand")
    await run.rollouts.delete("deleted")

    told = await run.control.wait(place, 1)
    assert [(signal.kind, signal.rollout_id) for signal in told] == [("cancelled", "ended"), ("cancelled", "deleted")]


async def test_a_controller_that_holds_nothing_can_leave(run: RunLog):
    await queue(run, "a")
    (a,) = await run.queue.take("c", 1)
    await run.queue.leave("c")
    assert await run.queue.renew("c", [a.entry]) == set()
    await run.rollouts.end("a", State.FAILED)
    await run.queue.leave("c")
    await run.queue.leave("never there")


async def test_following_the_control_stream_begins_where_asked_and_goes_on(run: RunLog):
    place = await run.control.last()
    await run.pause.pause()
    following = run.control.follow(place)
    assert (await anext(following)).kind == "paused"
    nxt = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0.02)
    await run.pause.resume()
    assert (await asyncio.wait_for(nxt, 5)).kind == "resumed"

    from_now = run.control.follow()
    first = asyncio.ensure_future(anext(from_now))
    await asyncio.sleep(0.05)
    await run.pause.pause()
    assert (await asyncio.wait_for(first, 5)).kind == "paused"


async def test_a_queued_rollout_wakes_a_waiting_controller_within_milliseconds(run: RunLog):
    late = []
    for number in range(10):
        place = await run.queue.wait("0-0", 0.001)
        waiting = asyncio.create_task(run.queue.wait(place, 5))
        await asyncio.sleep(0.02)
        begun = time.perf_counter()
        await queue(run, f"r{number}")
        await waiting
        late.append(time.perf_counter() - begun)
    assert sorted(late)[5] < 0.25
