"""What a demo came to, read from the log: reward by step, and on held-out tasks before and after.

Everything is computed from what the agents themselves reported, rollout by rollout.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, stdev

from leyden.log import Log, RunLog
from leyden.schemas import State
from leyden_trainer.decisions import KIND, Decision
from leyden_trainer.ids import parse_rollout_id
from leyden_trainer.rewards import reward_of

_PAGE = 500
SIGNIFICANT = 2.0


class OutcomeUnknown(RuntimeError):
    """The log does not hold what the outcome is computed from."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards of the held-out tasks, one rollout each, with the weights after `step`."""

    step: int
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.rewards)

    @property
    def standard_error(self) -> float:
        return stdev(self.rewards) / math.sqrt(len(self.rewards)) if len(self.rewards) > 1 else math.inf

    @property
    def right(self) -> float:
        """The share of tasks with the full reward."""
        return sum(reward == 1.0 for reward in self.rewards) / len(self.rewards)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`by_step` holds the mean reward of each trained step's rollouts, from step 1 on."""

    by_step: dict[int, float]
    before: Evaluation
    after: Evaluation

    @property
    def gain(self) -> float:
        return self.after.mean - self.before.mean

    @property
    def gain_error(self) -> float:
        """The gain's standard error, the two evaluations taken as independent."""
        return math.hypot(self.before.standard_error, self.after.standard_error)

    @property
    def clear(self) -> bool:
        """Whether the gain is more than chance would give."""
        return self.gain > SIGNIFICANT * self.gain_error


async def read_outcome(redis_url: str, run: str) -> Outcome:
    """Read what a finished training run has on record.

    Raises:
        OutcomeUnknown: there are no steps, or not two evaluations.
    """
    log = Log.connect(redis_url)
    try:
        found = log.run(run)
        by_step = await _rewards_by_step(found)
        evaluations = await _evaluations(found)
    finally:
        await log.close()
    if not by_step or len(evaluations) < 2:
        raise OutcomeUnknown(
            f"run {run} has {len(by_step)} trained steps and {len(evaluations)} evaluations on record; "
            "at least one and two are needed"
        )
    return Outcome(by_step, evaluations[0], evaluations[-1])


async def _rewards_by_step(run: RunLog) -> dict[int, float]:
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for entry in await run.steps.read():
        if entry.kind == KIND:
            decision = Decision.from_data(entry.data)
            rewards[decision.step] += [each.reward for each in decision.chosen]
    return {step: fmean(of_step) for step, of_step in sorted(rewards.items()) if of_step}


async def _evaluations(run: RunLog) -> list[Evaluation]:
    """By step; of two at the same step, as after an interruption with other settings, the later counts."""
    rewards: defaultdict[int, dict[int, float]] = defaultdict(dict)
    after = 0
    while True:
        page, _ = await run.completions.page(after, _PAGE)
        for completion in page:
            after = completion.ordinal
            if completion.is_train or completion.state is not State.SUCCEEDED:
                continue
            slot, _ = parse_rollout_id(completion.rollout_id)
            assert slot.val_step is not None
            reward = reward_of(await run.events.of_attempt(completion.rollout_id), 0.0)
            rewards[slot.val_step][slot.draw] = reward.value
        if not page:
            break
    return [Evaluation(step, tuple(of_step.values())) for step, of_step in sorted(rewards.items())]
