"""Rollouts are created once, whoever asks how often and dies in between."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leyden.log import Log, PayloadInvalid, RunLog, keys
from leyden.log.errors import IdTaken, InputDiffers, RolloutMissing, RunMissing, TransitionRefused
from leyden.schemas import NewRollout, RolloutConfig, RolloutMetadata, State, StatusPatch
from tests.log.conftest import Begin

generated = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def new(rollout_id: str | None = None, **fields: object) -> NewRollout:
    return NewRollout.model_validate({"input": {"q": 1}, "rollout_id": rollout_id, **fields})


async def test_a_new_rollout_is_queued_and_found_by_its_id_alone(log: Log, run: RunLog):
    made = await run.rollouts.create(
        new("a", input={"q": "ü", "data_id": 7}, is_train=False, metadata={"batch_idx": 3})
    )

    assert made.status.state == State.QUEUING
    assert made.status.version == 1
    assert made == await run.rollouts.get("a")
    assert (made.input, made.is_train, made.metadata.batch_idx) == ({"q": "ü", "data_id": 7}, False, 3)
    assert [taken.rollout_id for taken in await run.queue.take("c", 10)] == ["a"]
    assert (await log.locate("a")).run == run.run
    assert await run.rollouts.attempts("a") == []
    assert [entry.kind for entry in await run.events.entries("a")] == ["created"]


async def test_a_rollout_without_an_id_is_given_one(run: RunLog):
    first, second = await run.rollouts.create_many([new(), new()])

    assert first.rollout_id != second.rollout_id
    assert await run.rollouts.get(second.rollout_id) == second


@given(asked=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), clients=st.integers(1, 2))
@generated
async def test_each_id_is_created_and_queued_once_in_the_order_asked_for(
    begin: Begin, other_log: Log, asked: list[str], clients: int
):
    run = await begin("trainer")
    ids = [f"{run.run}.{each}" for each in asked]

    await asyncio.gather(
        *(log.rollouts.create_many(map(new, ids)) for log in (run, other_log.run(run.run))[:clients]),
    )
    await run.rollouts.create_many(map(new, ids))

    first_seen = list(dict.fromkeys(ids))
    queued = [taken.rollout_id for taken in await run.queue.take("c", 100)]
    assert sorted(queued) == sorted(first_seen)
    if clients == 1:
        assert queued == first_seen
    assert [rollout.rollout_id for rollout in await run.rollouts.in_states(State, 100)] == queued
    assert await run.rollouts.counts() == {state: len(queued) if state == State.QUEUING else 0 for state in State}


async def test_creating_a_known_rollout_changes_nothing_about_it(run: RunLog):
    await run.rollouts.create(new("a"))
    await run.rollouts.patch("a", StatusPatch(state=State.RUNNING))
    await run.events.append("a", "0", "reward", {"value": 1.0})
    stood = await run.rollouts.get("a")

    assert await run.rollouts.create(new("a", input="another", is_train=False)) == stood
    assert len(await run.events.of_attempt("a")) == 1


async def test_another_input_mode_or_config_under_a_known_id_is_refused_if_it_must_match(run: RunLog):
    await run.rollouts.create(new("a"), must_match=True)
    await run.rollouts.create(new("a", metadata=RolloutMetadata(batch_idx=9)), must_match=True)

    for other in (
        new("a", input={"q": 2}),
        new("a", is_train=False),
        new("a", config=RolloutConfig(timeout_seconds=5)),
    ):
        with pytest.raises(InputDiffers, match="rollout a exists with another input"):
            await run.rollouts.create(other, must_match=True)


async def test_a_creation_that_died_after_claiming_its_id_is_finished_by_the_next(
    log: Log, run: RunLog, monkeypatch: pytest.MonkeyPatch
):
    index = run.rollouts._index
    claimed = await index.claim("a", run.run)
    with pytest.raises(RolloutMissing):
        await run.rollouts.get("a")

    await run.rollouts.create(new("a"))

    assert await log.locate("a") == claimed


async def test_an_id_belongs_to_one_run(begin: Begin):
    here, there = await begin("trainer"), await begin("trainer")
    await here.rollouts.create(new("one"))

    with pytest.raises(IdTaken, match=f"taken by run {here.run}"):
        await there.rollouts.create(new("one"))


async def test_nothing_is_created_or_claimed_in_a_run_that_has_not_begun_or_has_ended(log: Log, run: RunLog):
    with pytest.raises(RunMissing, match="Run not found: nowhere"):
        await log.run("nowhere").rollouts.create(new("a"))
    await log.runs.end(run.run)
    with pytest.raises(RunMissing):
        await run.rollouts.create(new("a"))
    with pytest.raises(RolloutMissing):
        await log.locate("a")


async def test_a_run_that_ends_while_a_rollout_is_created_refuses_it(log: Log, run: RunLog):
    for ended in (True, False):
        name = run.run if ended else "nowhere"
        if ended:
            await log.runs.end(name)
        k = keys.RunKeys(name)
        outcome, *_ = await log._scripts.run(
            "create_rollout",
            [k.rollout("a"), k.events("a"), k.queue, k.in_state(State.QUEUING), k.settings, k.freed, k.claims],
            ["a", "nonce", "digest", 1, "", b"", 1],
        )
        assert outcome == (b"run ended" if ended else b"no run")
        with pytest.raises(RunMissing):
            await log.run(name).rollouts._creation.create([new(f"b-{name}")], must_match=False)


async def test_a_deleted_rollout_that_is_still_read_is_not_created_again(run: RunLog):
    await run.rollouts.create(new("a"))
    await run.rollouts.delete("a")

    with pytest.raises(TransitionRefused, match="deleted, not yet read"):
        await run.rollouts.create(new("a"))


async def test_an_input_that_is_not_json_is_refused_by_its_place(run: RunLog, log: Log):
    with pytest.raises(PayloadInvalid, match=r"data\.input\.x\[1\] is nan"):
        await run.rollouts.create(new("a", input={"x": [0, float("nan")]}))
    with pytest.raises(RolloutMissing):
        await log.locate("a")


async def test_half_a_surrogate_pair_in_an_input_is_kept(run: RunLog):
    made = await run.rollouts.create(new("a", input={"data_id": "\ud800", "text": "a\udc80"}))

    assert made.input == {"data_id": "\ud800", "text": "a\udc80"}


class TestAnIdUsedAgain:
    """After its rollout was freed."""

    async def test_has_another_nonce(self, log: Log, begin: Begin):
        run = await begin()
        await run.rollouts.create(new("a"))
        before = await log.locate("a")
        await run.rollouts.delete("a")
        await run.rollouts.create(new("a"))

        assert (await log.locate("a")).nonce != before.nonce

    async def test_has_another_nonce_even_if_who_freed_it_died_before_releasing_it(
        self, log: Log, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ):
        run = await begin()
        await run.rollouts.create(new("a"))
        before = await log.locate("a")

        async def die(*_: object) -> None:
            raise SystemError("killed")

        with monkeypatch.context() as patched:
            patched.setattr(run.rollouts._index, "release", die)
            with pytest.raises(SystemError):
                await run.rollouts.delete("a")
        assert await log.locate("a") == before

        await run.rollouts.create(new("a"))
        assert (await log.locate("a")).nonce != before.nonce
        assert (await run.rollouts.get("a")).status.state == State.QUEUING

    async def test_is_not_created_by_one_who_claimed_it_in_its_former_life(self, log: Log, begin: Begin):
        run = await begin()
        await run.rollouts.create(new("a"))
        nonce = (await log.locate("a")).nonce
        await run.rollouts.delete("a")

        k = keys.RunKeys(run.run)
        (outcome,) = await log._scripts.run(
            "create_rollout",
            [k.rollout("a"), k.events("a"), k.queue, k.in_state(State.QUEUING), k.settings, k.freed, k.claims],
            ["a", nonce, "digest", 1, "", b""],
        )
        assert outcome == b"stale"

    async def test_is_released_by_whoever_sweeps_later(self, log: Log, begin: Begin, monkeypatch: pytest.MonkeyPatch):
        run = await begin()
        await run.rollouts.create(new("a"))

        async def skip(*_: object) -> None:
            return

        with monkeypatch.context() as patched:
            patched.setattr(run.rollouts._index, "release", skip)
            await run.rollouts.delete("a")
        assert await run.rollouts.retire(3600) == 0

        with pytest.raises(RolloutMissing):
            await log.locate("a")

    async def test_is_not_released_by_one_who_is_late(self, log: Log, begin: Begin):
        run = await begin()
        await run.rollouts.create(new("a"))
        before = await log.locate("a")
        await run.rollouts.delete("a")
        await run.rollouts.create(new("a"))
        now = await log.locate("a")

        await run.rollouts._index.release(keys.RunKeys(run.run), "a", before.nonce)
        await run.rollouts._index.release(keys.RunKeys(run.run), "never", "nonce")

        assert await log.locate("a") == now
