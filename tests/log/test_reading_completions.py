"""Readers get every completion, and rollouts are freed when all have acknowledged them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from leyden.log import Completion, Log, RunLog, RunSettings
from leyden.log.errors import LogUnavailable, RolloutMissing, RunMissing
from leyden.schemas import NewRollout, State
from tests.log.conftest import Begin

generated = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def finish(run: RunLog, *ids: str) -> None:
    await run.rollouts.create_many(
        NewRollout(input={"data_id": f"d{each}"}, rollout_id=each, is_train=False) for each in ids
    )
    for each in ids:
        await run.rollouts.end(each, State.SUCCEEDED)


async def traces(wire: Redis, rollout_id: str) -> list[str]:
    return [key async for key in wire.scan_iter(f"*{rollout_id}*")]


async def test_a_completion_says_what_ended_how(run: RunLog):
    await finish(run, "a")
    assert await run.completions.read("trainer", "t", 10, 1) == [Completion(1, "a", State.SUCCEEDED, False, "da")]


async def test_a_reader_waits_for_the_next_completion(run: RunLog):
    assert await run.completions.read("trainer", "t", 10, 0.01) == []
    waiting = asyncio.create_task(run.completions.read("trainer", "t", 10, 10))
    await asyncio.sleep(0.03)
    await finish(run, "a")
    assert [each.rollout_id for each in await waiting] == ["a"]


async def test_what_is_not_acknowledged_stays_pending_for_its_consumer(run: RunLog):
    await finish(run, *"abcd")
    got = await run.completions.read("trainer", "t", 3, 1)
    assert await run.completions.pending("trainer", "t") == got
    assert await run.completions.pending("trainer", "other") == []
    await run.completions.acknowledge("trainer", got[1:2])
    assert [each.rollout_id for each in await run.completions.pending("trainer", "t")] == ["a", "c"]
    assert [each.rollout_id for each in await run.completions.read("trainer", "t", 3, 1)] == ["d"]


async def test_pages_go_on_where_they_are_asked_to_and_count_all(run: RunLog):
    await finish(run, *"abcd")
    page, total = await run.completions.page(1, 2)
    assert ([each.rollout_id for each in page], total) == (["b", "c"], 4)
    assert (await run.completions.page(-3, 0))[0][0].ordinal == 1
    assert await run.completions.page(4, 5) == ([], 4)
    assert await run.completions.page(10**30, 5) == ([], 4)
    got = await run.completions.read("trainer", "t", 2, 1)
    await run.completions.acknowledge("trainer", got)
    page, total = await run.completions.page(0, 10)
    assert ([each.ordinal for each in page], total) == ([3, 4], 4)


async def test_a_reader_that_the_run_does_not_have_is_told_so(run: RunLog, log: Log):
    for ask in (run.completions.read("nobody", "t", 1, 0.01), run.completions.pending("nobody", "t")):
        with pytest.raises(RunMissing, match="with a reader nobody"):
            await ask
    with pytest.raises(RunMissing):
        await log.run("nowhere").completions.read("trainer", "t", 1, 0.01)


@given(
    readers=st.lists(st.sampled_from(["trainer", "archive"]), unique=True, min_size=1),
    acts=st.lists(st.tuples(st.sampled_from(["trainer", "archive", "delete"]), st.integers(0, 2)), max_size=14),
)
@generated
async def test_a_rollout_is_freed_exactly_when_all_readers_have_acknowledged_it(
    begin: Begin, wire: Redis, readers: list[str], acts: list[tuple[str, int]]
):
    run = await begin(*readers)
    ids = [f"{run.run}.{n}" for n in range(3)]
    await finish(run, *ids)
    completions, _ = await run.completions.page(0, 10)
    acked: dict[int, set[str]] = {n: set() for n in range(3)}
    deleted: set[int] = set()
    for who, which in acts:
        done_before = acked[which] >= set(readers)
        if who == "delete":
            assert await run.rollouts.delete(ids[which]) is (not done_before and which not in deleted)
            deleted.add(which)
            continue
        freed = await run.completions.acknowledge(who, [completions[which]])
        acked[which].add(who)
        assert freed == (acked[which] >= set(readers) and not done_before)
    for n, rollout_id in enumerate(ids):
        gone = acked[n] >= set(readers)
        left = await traces(wire, rollout_id)
        assert (left == []) is gone, left
        if gone or n in deleted:
            with pytest.raises(RolloutMissing):
                await run.rollouts.get(rollout_id)
    left_over = {each.ordinal - 1 for each in (await run.completions.page(0, 10))[0]}
    assert left_over == {n for n in range(3) if not acked[n] >= set(readers)}


async def test_a_run_without_readers_frees_nothing_by_itself(begin: Begin):
    run = await begin()
    await finish(run, "a")
    page, _ = await run.completions.page(0, 5)
    assert await run.completions.acknowledge("anybody", page) == 0
    assert (await run.rollouts.get("a")).status.state == State.SUCCEEDED
    assert await run.rollouts.delete("a")
    assert await run.rollouts.delete("a") is False
    assert (await run.completions.page(0, 5)) == ([], 1)


class TestADeletedRollout:
    """Hidden at once, freed when nobody needs it."""

    async def test_that_had_not_ended_is_published_as_failed_so_that_no_reader_waits_for_it(
        self, run: RunLog, wire: Redis
    ):
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        assert await run.rollouts.delete("a")
        with pytest.raises(RolloutMissing):
            await run.rollouts.get("a")
        assert sum((await run.rollouts.counts()).values()) == 0
        (completion,) = await run.completions.read("trainer", "t", 5, 1)
        assert (completion.rollout_id, completion.state) == ("a", State.FAILED)
        assert await run.completions.acknowledge("trainer", [completion]) == 1
        assert await traces(wire, "leyden:index:a") == []
        assert await run.completions.acknowledge("trainer", [completion]) == 0

    async def test_of_a_run_without_readers_is_freed_at_once_and_never_published(self, begin: Begin, wire: Redis):
        run = await begin()
        await run.rollouts.create(NewRollout(input=None, rollout_id="gone"))
        assert await run.rollouts.delete("gone")
        assert await run.rollouts.delete("never there") is False
        assert await traces(wire, "gone") == []
        assert await run.completions.page(0, 5) == ([], 0)


class TestAReader:
    """Named by the run."""

    async def test_that_is_removed_is_waited_for_no_longer(self, begin: Begin, wire: Redis):
        run = await begin("trainer", "archive")
        ids = [f"{run.run}-{each}" for each in "abc"]
        await finish(run, *ids)
        got = await run.completions.read("trainer", "t", 2, 1)
        assert await run.completions.acknowledge("trainer", got) == 0
        await run.rollouts.delete(ids[1])

        assert await run.remove_reader("archive") is True

        assert (await run.settings()).readers == ["trainer"]
        assert [bool(await traces(wire, each)) for each in ids] == [False, False, True]
        assert await run.remove_reader("archive") is False
        with pytest.raises(RunMissing):
            await run.completions.read("archive", "a", 1, 0.01)

    async def test_that_is_added_later_gets_what_there_is_from_the_first_on(self, begin: Begin, log: Log):
        run = await begin("trainer")
        await finish(run, "a", "b")
        assert await log.runs.begin(run.run, RunSettings(readers=["archive"])) is False
        assert (await run.settings()).readers == ["trainer", "archive"]
        assert len(await run.completions.read("archive", "x", 5, 1)) == 2

    async def test_that_was_the_last_leaves_its_rollouts_to_deletion(self, begin: Begin):
        run = await begin("trainer")
        await finish(run, "a")
        await run.remove_reader("trainer")
        assert (await run.rollouts.get("a")).status.state == State.SUCCEEDED

    async def test_gets_what_was_on_its_way_when_a_read_broke(self, run: RunLog, monkeypatch: pytest.MonkeyPatch):
        await finish(run, *"abcde")
        completions = run.completions
        assert [each.rollout_id for each in await completions.read("trainer", "t", 1, 1)] == ["a"]
        through = completions._read_group
        broken = iter([True, False, True])

        async def lossy(*what):
            rows = await through(*what)
            if next(broken, False):
                raise ConnectionResetError("cut")
            return rows

        monkeypatch.setattr(completions, "_read_group", lossy)
        with pytest.raises(LogUnavailable):
            await completions.read("trainer", "t", 2, 1)
        assert [each.rollout_id for each in await completions.read("trainer", "t", 1, 1)] == ["b"]
        with pytest.raises(LogUnavailable):
            await completions.read("trainer", "t", 1, 1)
        rest = [await completions.read("trainer", "t", 9, 1) for _ in range(2)]
        assert [each.rollout_id for batch in rest for each in batch] == ["c", "d", "e"]

    async def test_that_is_cancelled_in_a_read_misses_nothing(self, run: RunLog):
        reading = asyncio.create_task(run.completions.read("trainer", "t", 5, 30))
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await finish(run, "a", "b")
        assert [each.rollout_id for each in await run.completions.read("trainer", "t", 5, 1)] == ["a", "b"]
