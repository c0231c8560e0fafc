"""A rollout ends once, and its place in the completions is its for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from leyden.log import Log, RunLog, keys
from leyden.log.errors import LeaseLost, RolloutFinished, RolloutMissing, TransitionRefused
from leyden.schemas import NewRollout, RolloutConfig, State, StatusPatch
from tests.log.conftest import Begin

generated = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def create(run: RunLog, *ids: str) -> None:
    await run.rollouts.create_many(NewRollout(input={"data_id": each}, rollout_id=each) for each in ids)


@given(
    order=st.permutations(["a", "b", "c", "d"]),
    again=st.lists(st.sampled_from("abcd"), max_size=4),
    ends=st.lists(st.sampled_from(["end", "patch", "delete"]), min_size=4, max_size=4),
)
@generated
async def test_completions_are_dense_and_in_order_whoever_ends_and_asks_again(
    begin: Begin, wire: Redis, order: list[str], again: list[str], ends: list[str]
):
    run = await begin("trainer")
    ids = {each: f"{run.run}.{each}" for each in order}
    await create(run, *ids.values())
    ended: dict[str, int] = {}
    for each, how in zip(order, ends, strict=True):
        if how == "end":
            ended[each] = await run.rollouts.end(ids[each], State.SUCCEEDED)
        elif how == "patch":
            await run.rollouts.patch(ids[each], StatusPatch(state=State.FAILED, error_message="no"))
        else:
            await run.rollouts.delete(ids[each])

    for each in again:
        if each in ended:
            assert await run.rollouts.end(ids[each], State.SUCCEEDED) == ended[each]
            with pytest.raises(RolloutFinished, match="ended as succeeded"):
                await run.rollouts.end(ids[each], State.FAILED)
            with pytest.raises(TransitionRefused):
                await run.rollouts.patch(ids[each], StatusPatch(state=State.FAILED))

    found, total = await run.completions.page(0, 100)
    assert [(each.ordinal, each.rollout_id) for each in found] == [(n, ids[each]) for n, each in enumerate(order, 1)]
    assert total == 4
    entries: Any = await wire.xrange(keys.RunKeys(run.run).completions)
    assert [entry for entry, _ in entries] == ["1-0", "2-0", "3-0", "4-0"]
    assert await run.queue.take("c", 10) == []


async def test_two_who_end_a_rollout_at_once_agree(run: RunLog, other_log: Log):
    ids = [f"r{n}" for n in range(25)]
    await create(run, *ids)

    both = await asyncio.gather(
        *(
            rollouts.end(each, State.SUCCEEDED)
            for each in ids
            for rollouts in (run.rollouts, other_log.run(run.run).rollouts)
        )
    )

    assert both[::2] == both[1::2]
    assert sorted(both[::2]) == list(range(1, 26))


async def test_the_error_of_a_failed_rollout_is_kept_however_it_is_spelled(run: RunLog):
    await create(run, "a")
    await run.rollouts.end("a", State.FAILED, error="agent said \udcff, exit 1\n")

    status = (await run.rollouts.get("a")).status
    assert (status.state, status.error_message) == (State.FAILED, "agent said \\udcff, exit 1\n")


async def test_what_is_not_there_does_not_end(run: RunLog):
    with pytest.raises(RolloutMissing, match="Rollout not found: a"):
        await run.rollouts.end("a", State.FAILED)
    await create(run, "a")
    with pytest.raises(ValueError, match="can't end as running"):
        await run.rollouts.end("a", State.RUNNING)
    await run.rollouts.delete("a")
    with pytest.raises(RolloutMissing):
        await run.rollouts.end("a", State.FAILED)


async def test_a_controller_that_does_not_hold_a_rollout_can_not_end_it(run: RunLog):
    await create(run, "a", "b")
    a, b = await run.queue.take("c", 2)
    with pytest.raises(LeaseLost, match="held by c, not by d"):
        await run.rollouts.end("a", State.FAILED, entry=a.entry, consumer="d")
    with pytest.raises(LeaseLost):
        await run.rollouts.end("a", State.FAILED, entry=b.entry, consumer="c")
    with pytest.raises(LeaseLost, match="nobody"):
        await run.rollouts.end("a", State.FAILED, entry="5-5", consumer="c")


class TestAPatch:
    """The contract's PATCH."""

    @pytest.mark.parametrize(
        ("way", "allowed"),
        [
            ([], {"running", "failed"}),
            ([State.RUNNING], {"succeeded", "failed"}),
            ([State.RUNNING, State.SUCCEEDED], set()),
            ([State.FAILED], set()),
        ],
    )
    @pytest.mark.parametrize("wanted", list(State))
    async def test_follows_the_contract_s_transitions(
        self, run: RunLog, way: list[State], allowed: set[str], wanted: State
    ):
        await create(run, "a")
        for state in way:
            await run.rollouts.patch("a", StatusPatch(state=state))
        before = await run.rollouts.get("a")
        if wanted in allowed:
            after = await run.rollouts.patch("a", StatusPatch(state=wanted))
            assert (after.status.state, after.status.version) == (wanted, before.status.version + 1)
            assert after.status.updated_at >= before.status.updated_at
        else:
            with pytest.raises(TransitionRefused, match=f"cannot transition {before.status.state} -> {wanted}"):
                await run.rollouts.patch("a", StatusPatch(state=wanted))
            assert await run.rollouts.get("a") == before

    async def test_sets_clears_and_leaves_fields(self, run: RunLog):
        await create(run, "a")
        await run.rollouts.patch("a", StatusPatch(k8s_job_name="job", last_attempt_id="3", error_message="odd"))
        after = await run.rollouts.patch("a", StatusPatch(error_message=None, k8s_job_name=None))
        assert (after.status.k8s_job_name, after.status.error_message) == (None, None)
        assert (after.status.last_attempt_id, after.status.version) == ("3", 3)
        after = await run.rollouts.patch("a", StatusPatch(last_attempt_id=None))
        assert after.status.last_attempt_id is None
        assert await run.rollouts.patch("a", StatusPatch()) == after
        with pytest.raises(TransitionRefused, match="queuing -> None"):
            await run.rollouts.patch("a", StatusPatch(state=None))

    async def test_that_ends_sets_its_fields_too(self, run: RunLog):
        await create(run, "a")
        await run.rollouts.patch("a", StatusPatch(state=State.RUNNING, last_attempt_id="0"))
        after = await run.rollouts.patch(
            "a", StatusPatch(state=State.FAILED, last_attempt_id="1", k8s_job_name="j", error_message="exit 3")
        )
        assert (after.status.last_attempt_id, after.status.k8s_job_name) == ("1", "j")
        assert after.status.error_message == "exit 3"

    async def test_of_a_missing_rollout_is_refused(self, run: RunLog):
        for patch in (StatusPatch(), StatusPatch(k8s_job_name="j"), StatusPatch(state=State.FAILED)):
            with pytest.raises(RolloutMissing):
                await run.rollouts.patch("none", patch)

    async def test_that_is_sent_again_changes_nothing(self, run: RunLog, log: Log, monkeypatch: pytest.MonkeyPatch):
        """As when a connection broke before its answer came."""
        sent: list[tuple] = []
        through = log._scripts.run

        async def note(name, keys, args=()):
            sent.append((name, keys, args))
            return await through(name, keys, args)

        await create(run, "a")
        monkeypatch.setattr(log._scripts, "run", note)
        await run.rollouts.patch("a", StatusPatch(state=State.RUNNING))
        first = sent[-1]
        await run.rollouts.patch("a", StatusPatch(k8s_job_name="j"))
        await run.rollouts.patch("a", StatusPatch(state=State.SUCCEEDED))
        last = sent[-1]
        before = await run.rollouts.get("a")

        assert await through(*first) == [b"patched"]
        assert await through(*last) == [b"already", b"succeeded", 1]
        assert await run.rollouts.get("a") == before


async def test_rollouts_are_listed_by_state_oldest_first(run: RunLog):
    await create(run, *"abcdef")
    await run.rollouts.patch("b", StatusPatch(state=State.RUNNING))
    await run.rollouts.end("d", State.SUCCEEDED)
    await run.rollouts.end("c", State.FAILED)

    async def listed(*states: State, limit: int = 10) -> str:
        return "".join(each.rollout_id for each in await run.rollouts.in_states(states, limit))

    assert await listed(*State) == "abcdef"
    assert await listed(State.QUEUING, State.FAILED, limit=3) == "ace"
    assert await listed(State.SUCCEEDED, limit=0) == ""
    assert await listed() == ""
    assert list((await run.rollouts.counts()).values()) == [3, 1, 1, 1]


async def test_old_finished_rollouts_are_retired_and_no_others(begin: Begin):
    run = await begin()
    await create(run, "old-ok", "old-bad", "busy")
    await run.rollouts.end("old-ok", State.SUCCEEDED)
    await run.rollouts.end("old-bad", State.FAILED)
    assert await run.rollouts.retire(60) == 0
    await asyncio.sleep(0.05)

    assert await run.rollouts.retire(0.01, limit=1) == 1
    assert await run.rollouts.retire(0.01) == 1
    assert await run.rollouts.retire(0.01) == 0
    assert [each.rollout_id for each in await run.rollouts.in_states(State, 10)] == ["busy"]


async def test_the_config_comes_back_as_it_was_given(run: RunLog):
    config = RolloutConfig.model_validate(
        {"timeout_seconds": 5, "local": {"command": ["a", "b c"], "env_map": {"X": "y"}}}
    )
    made = await run.rollouts.create(NewRollout(input=None, config=config, rollout_id="a"))
    assert made.config == config
    assert (await run.rollouts.get("a")).config == config
