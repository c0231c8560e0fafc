"""The demo's outcome is what the agents reported, and only a gain beyond chance counts."""

import pytest
from examples.demo import plot
from examples.demo.outcome import Evaluation, Outcome, OutcomeUnknown, read_outcome

from leyden.schemas import NewRollout, State, StatusPatch
from leyden_trainer.decisions import KIND, Chosen, Decision
from leyden_trainer.ids import Slot, rollout_id

BRANCH = "abcdef01"


async def finish(run, slot: Slot, reward: float | None, state: State = State.SUCCEEDED, tried: int = 0) -> str:
    name = rollout_id(slot, tried)
    await run.rollouts.create(NewRollout(rollout_id=name, input={}, is_train=slot.is_train))
    await run.rollouts.patch(name, StatusPatch(state=State.RUNNING, last_attempt_id="0"))
    if reward is not None:
        await run.events.append(name, "0", "reward", {"value": reward})
    await run.rollouts.end(name, state)
    return name


async def test_rewards_are_read_rollout_by_rollout(run, redis_url):
    epoch = await run.lease.acquire("a test", 30)
    for step, rewards in ((1, [0.0, 0.5]), (2, [0.5, 1.0])):
        chosen = [
            Chosen(await finish(run, Slot(run.run, BRANCH, None, step - 1, repeat), reward), (0,), reward, "x")
            for repeat, reward in enumerate(rewards)
        ]
        decision = Decision.of(BRANCH, step, 0, chosen, {})
        await run.steps.append(KIND, decision.to_data(), epoch=epoch, step_id=decision.step_id)
    for step, rewards in ((0, [0.0, 0.0, 0.25]), (2, [1.0, 0.75, None])):
        for draw, reward in enumerate(rewards):
            await finish(run, Slot(run.run, BRANCH, step, draw, 0), reward)
    failed = Slot(run.run, BRANCH, 2, 3, 0)
    await finish(run, failed, None, State.FAILED)
    await finish(run, failed, 1.0, tried=1)

    outcome = await read_outcome(redis_url, run.run)

    assert outcome.by_step == {1: 0.25, 2: 0.75}
    assert outcome.before == Evaluation(0, (0.0, 0.0, 0.25))
    assert outcome.after == Evaluation(2, (1.0, 0.75, 0.0, 1.0))
    assert outcome.after.right == 0.5


async def test_a_run_that_was_not_evaluated_twice_says_so(run, redis_url):
    await finish(run, Slot(run.run, BRANCH, 0, 0, 0), 0.5)
    with pytest.raises(OutcomeUnknown, match="0 trained steps and 1 evaluations"):
        await read_outcome(redis_url, run.run)


@pytest.mark.parametrize(
    ("before", "after", "clear"),
    [
        ([0.0, 0.1, 0.0, 0.1], [0.9, 1.0, 0.9, 1.0], True),
        ([0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0], False),
        ([0.9, 1.0, 0.9, 1.0], [0.0, 0.1, 0.0, 0.1], False),
        ([0.0], [1.0], False),
    ],
)
def test_a_gain_is_clear_only_beyond_twice_its_standard_error(before, after, clear):
    assert Outcome({1: 0.5}, Evaluation(0, tuple(before)), Evaluation(1, tuple(after))).clear is clear


def test_it_can_be_drawn(tmp_path):
    outcome = Outcome({1: 0.2, 2: 0.4}, Evaluation(0, (0.1, 0.2)), Evaluation(2, (0.5, 0.6)))
    plot.write_png(outcome, "a title", tmp_path / "reward.png")

    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "reward by step" in plot.for_terminal(outcome)
