import pytest

from leyden_trainer.choosing import (
    BatchMissing,
    NothingToTrain,
    decide,
    earliest,
    metrics_of,
    must_have_rows,
    must_match,
    those_of,
)
from leyden_trainer.groups import Group, Outcome


def name(draw: int, repeat: int, tried: int = 0) -> str:
    return f"r.b.t{draw}.{repeat}.{tried}"


def outcome(draw: int, repeat: int, rows: int = 1, **fields) -> Outcome:
    keys = {f"d{draw}_{repeat}_{row}": {} for row in range(rows)}
    return Outcome(name(draw, repeat), rows=keys, digest=f"{draw}.{repeat}", **fields)


def group(draw: int, *outcomes: Outcome, awaited: int = 0) -> Group:
    settled = dict(enumerate(outcomes))
    awaits = {len(outcomes) + n: name(draw, len(outcomes) + n) for n in range(awaited)}
    return Group(f"d{draw}", "train", draw, 1, open=awaits, outcomes=settled)


def test_the_earliest_complete_groups_are_taken_when_there_are_enough():
    groups = [group(0, awaited=1), group(1, outcome(1, 0)), group(2, outcome(2, 0)), group(3, outcome(3, 0))]

    assert [each.order for each in earliest(2)(groups) or []] == [1, 2]
    assert earliest(4)(groups) is None


def test_every_row_is_chosen_in_order_and_what_has_none_is_left_out_with_its_reason():
    failed = Outcome(name(4, 1), failure="exit 1")
    groups = [group(3, outcome(3, 0, rows=2), outcome(3, 1)), group(4, outcome(4, 0), failed)]

    decision = decide("b", 7, 0, groups, None)

    assert decision.keys == ["d3_0_0", "d3_0_1", "d3_1_0", "d4_0_0"]
    assert decision.left_out == {name(4, 1): "exit 1"}
    assert (decision.step, decision.trigger, decision.branch) == (7, 0, "b")


def test_a_batch_that_may_not_have_more_rows_leaves_the_least_telling_out_and_says_so():
    same = group(3, outcome(3, 0, reward=1.0), outcome(3, 1, reward=1.0))
    telling = group(4, outcome(4, 0, reward=0.0), outcome(4, 1, reward=1.0))

    decision = decide("b", 7, 0, [same, telling], 2)

    assert decision.keys == ["d4_0_0", "d4_1_0"]
    assert decision.left_out == {name(3, 0): "surplus", name(3, 1): "surplus"}


def test_a_batch_on_record_waits_for_all_that_it_consumed():
    failed = Outcome(name(4, 0), failure="exit 1")
    complete = [group(3, outcome(3, 0)), group(4, failed), group(5, outcome(5, 0))]
    ready = those_of(decide("b", 7, 0, complete[:2], None))

    assert ready([complete[0], group(4, awaited=1), complete[2]]) is None
    assert [each.order for each in ready(complete) or []] == [3, 4]


def test_a_batch_built_again_is_the_one_on_record():
    groups = [group(3, outcome(3, 0))]

    must_match(decide("b", 7, 0, groups, None), groups)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (outcome(3, 0), r"its rows are now changed"),
        (Outcome(name(3, 0), failure="deleted"), "deleted"),
        (outcome(3, 1), "it was not asked for"),
    ],
)
def test_a_batch_that_can_not_be_built_again_is_an_error_that_says_why(now: Outcome, why: str):
    decision = decide("b", 7, 0, [group(3, outcome(3, 0))], None)
    if now.rows and now.rollout_id == name(3, 0):
        now.digest = "changed"

    with pytest.raises(BatchMissing, match=rf"step 7 is on record with rollout r\.b\.t3\.0\.0 .*but {why}"):
        must_match(decision, [group(3, now)])


def test_a_batch_without_a_row_says_what_went_wrong():
    failed = [Outcome(name(3, repeat), failure="exit 1") for repeat in range(3)]

    with pytest.raises(NothingToTrain, match="no rollout of step 7 can be used: 3 × exit 1"):
        must_have_rows([group(3, *failed)], 7)


def test_metrics_count_rollouts_once_and_calls_by_reason():
    filled = outcome(3, 1, reward=0.0, filled=True, dropped={"undelivered": 2})
    failed = Outcome(name(3, 2), failure="exit 1", dropped={"error": 1})
    groups = [group(3, outcome(3, 0, rows=3, reward=1.0, reward_filled=True), filled, failed)]

    assert metrics_of(groups, "training") == {
        "training/rollouts/reward/mean": 0.5,
        "training/rollouts/used": 2,
        "training/rollouts/left_out": 1,
        "training/rollouts/failed_and_filled": 1,
        "training/rollouts/reward_filled": 1,
        "training/calls_dropped/error": 1,
        "training/calls_dropped/undelivered": 2,
    }
