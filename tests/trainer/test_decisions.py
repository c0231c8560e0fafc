"""Batches are decided once, recorded, and found again by every later start."""

import random
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.log.errors import LeaseLost
from leyden_trainer.decisions import Chosen, Decision, DecisionInvalid, Decisions, digest_of, rows_within
from leyden_trainer.ids import RowKey, Slot, rollout_id, uid
from leyden_trainer.samples import Row


def name(draw, repeat, tried=0):
    return rollout_id(Slot("test", "b1", None, draw, repeat), tried)


def chose(draw, repeat, rows=(0,), reward=1.0):
    return Chosen(name(draw, repeat), tuple(rows), reward, "0123456789abcdef")


places = st.tuples(st.integers(0, 200), st.integers(0, 20))
row_sets = st.sets(st.integers(0, 30), min_size=1, max_size=4).map(sorted)
rewards = st.floats(allow_nan=False, allow_infinity=False)
decisions = st.builds(
    lambda chosen, left_out, step: Decision.of(
        "b1",
        step,
        0,
        [chose(draw, repeat, rows, reward) for (draw, repeat), (rows, reward) in chosen.items()],
        {name(draw, repeat): "failed" for draw, repeat in left_out - chosen.keys()},
    ),
    st.dictionaries(places, st.tuples(row_sets, rewards), min_size=1, max_size=6),
    st.sets(places, max_size=3),
    st.integers(0, 10**6),
)


@given(decisions)
def test_a_decision_is_read_back_from_json(decision):
    assert Decision.from_data(orjson.loads(orjson.dumps(decision.to_data()))) == decision


@given(decisions, st.randoms(use_true_random=False))
def test_rows_come_in_order_of_draw_repeat_and_row_however_they_were_found(decision, shuffled):
    found = list(decision.chosen)
    shuffled.shuffle(found)
    again = Decision.of(decision.branch, decision.step, decision.trigger, found, decision.left_out)
    assert again == decision
    keys = [RowKey.parse(key) for key in decision.keys]
    order = [(int(key.uid.removeprefix("d")), key.repeat, key.row) for key in keys]
    assert order == sorted(set(order))


def test_a_decision_says_what_it_consumed():
    decision = Decision.of("b1", 3, 1, [chose(2, 0), chose(1, 1, (0, 2)), chose(1, 0)], {name(4, 0): "failed"})
    assert decision.keys == ["d1_0_0", "d1_1_0", "d1_1_2", "d2_0_0"]
    assert decision.rollout_ids == [name(1, 0), name(1, 1), name(2, 0), name(4, 0)]
    assert decision.step_id == "b1.batch.3.1"


@pytest.mark.parametrize("rows", [(), (1, 0), (0, 0), (-1,)])
def test_rows_out_of_order_are_refused(rows):
    with pytest.raises(DecisionInvalid, match="ascending"):
        chose(0, 0, rows)


def test_a_rollout_twice_or_chosen_and_left_out_is_refused():
    with pytest.raises(DecisionInvalid, match="each once"):
        Decision("b1", 1, 0, (chose(1, 0), chose(0, 0)))
    with pytest.raises(DecisionInvalid, match="each once"):
        Decision.of("b1", 1, 0, [chose(1, 0), Chosen(name(1, 0, tried=1), (0,), 0.0, "")], {})
    with pytest.raises(DecisionInvalid, match="left out"):
        Decision("b1", 1, 0, (chose(1, 0),), {name(1, 0): "failed"})


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"chosen": [["x", [0], 1.0, ""]]}, {"chosen": [1]}, {"left_out": None}]
)
def test_a_record_that_can_not_be_read_is_refused(change):
    data = Decision.of("b1", 1, 0, [chose(0, 0)], {}).to_data() | change
    with pytest.raises(DecisionInvalid):
        Decision.from_data(data)


ROW = Row((1, 2), (3, 4), (1, 1), (-0.5, -0.25), ("b1:0",), 0)


@pytest.mark.parametrize(
    "other",
    [
        replace(ROW, prompt_ids=(1,)),
        replace(ROW, response_ids=(3, 5)),
        replace(ROW, prompt_ids=(1, 2, 3), response_ids=(4,)),
        replace(ROW, response_mask=(1, 0)),
        replace(ROW, log_probs=(-0.5, -0.75)),
    ],
)
def test_a_digest_tells_rows_and_rewards_apart(other):
    assert digest_of([ROW], 1.0) == digest_of([replace(ROW)], 1.0)
    assert digest_of([ROW], 1.0) != digest_of([other], 1.0)
    assert digest_of([ROW], 1.0) != digest_of([ROW], 0.0)
    assert digest_of([ROW, other], 1.0) != digest_of([other, ROW], 1.0)


# What `max_ppo_update_times` leaves of a step's rows.

scored = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0])), max_size=12).map(
    lambda found: [(RowKey(uid(draw), n, 0), reward) for n, (draw, reward) in enumerate(found)]
)


@given(scored, st.integers(0, 14))
def test_rows_within_a_limit_keep_their_order_and_lose_those_that_teach_least(rows, most):
    kept = rows_within(rows, most, "seed")
    assert len(kept) == min(len(rows), most)
    assert kept == [key for key, _ in rows if key in set(kept)]
    assert kept == rows_within(rows, most, "seed")
    seen = {key.uid: {reward for other, reward in rows if other.uid == key.uid} for key, _ in rows}
    flat = {key for key, _ in rows if len(seen[key.uid]) == 1}
    if set(kept) & flat:
        assert {key for key, _ in rows} - flat <= set(kept)


def test_which_of_equal_rows_go_depends_on_the_seed():
    rows = [(RowKey(uid(0), n, 0), float(n)) for n in range(20)]
    assert len({tuple(rows_within(rows, 10, str(seed))) for seed in range(5)}) > 1
    before = random.getstate()
    rows_within(rows, 10, "x")
    assert random.getstate() == before


# On record.


async def test_what_was_recorded_is_found_by_the_next_start(run):
    epoch = await run.lease.acquire("trainer", ttl_seconds=30)
    first, other = Decisions(run.steps, "b1"), Decisions(run.steps, "b2")
    await first.load()
    decided = [Decision.of("b1", step, 0, [chose(step, 0)], {name(step, 1): "failed"}) for step in (1, 2)]
    for decision in decided:
        await first.record(decision, epoch)

    again = Decisions(run.steps, "b1")
    await again.load()
    await other.load()

    assert [again.recorded(step) for step in (1, 2, 3)] == [*decided, None]
    assert other.recorded(1) is None


async def test_recording_again_changes_nothing_and_another_batch_is_refused(run):
    epoch = await run.lease.acquire("trainer", ttl_seconds=30)
    recorder = Decisions(run.steps, "b1")
    await recorder.load()
    decision = Decision.of("b1", 1, 0, [chose(0, 0)], {})
    await recorder.record(decision, epoch)
    await recorder.record(decision, epoch)
    assert len(await run.steps.read()) == 1
    with pytest.raises(DecisionInvalid, match="another batch is on record"):
        await recorder.record(Decision.of("b1", 1, 0, [chose(1, 0)], {}), epoch)
    with pytest.raises(DecisionInvalid, match="branch b2"):
        await recorder.record(Decision.of("b2", 2, 0, [chose(1, 0)], {}), epoch)


async def test_a_trainer_without_the_lease_records_nothing(run):
    epoch = await run.lease.acquire("trainer", ttl_seconds=30)
    recorder = Decisions(run.steps, "b1")
    with pytest.raises(LeaseLost):
        await recorder.record(Decision.of("b1", 1, 0, [chose(0, 0)], {}), epoch - 1)
    assert recorder.recorded(1) is None
    assert await run.steps.read() == []
