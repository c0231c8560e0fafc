"""From groups to a batch: which rows are chosen, and whether they are those that are on record."""

from collections import Counter
from collections.abc import Callable, Sequence

from leyden_trainer.decisions import Chosen, Decision, rows_within
from leyden_trainer.groups import Group, Outcome
from leyden_trainer.ids import RowKey, parse_rollout_id, uid

Ready = Callable[[list[Group]], list[Group] | None]
"""Which of the groups, given in order, make a batch; None while they are not all there."""


class NothingToTrain(RuntimeError):
    """Every rollout of a batch failed, or none of its rows can be trained on; says why."""


class BatchMissing(RuntimeError):
    """A batch that is on record can't be built again from the log."""


def earliest(count: int) -> Ready:
    """The first `count` complete groups."""

    def ready(groups: list[Group]) -> list[Group] | None:
        complete = [group for group in groups if group.complete]
        return complete[:count] if len(complete) >= count else None

    return ready


def those_of(decision: Decision) -> Ready:
    """The groups that a decision consumed, as soon as all of them are complete."""
    uids = {uid(parse_rollout_id(rollout_id)[0].draw) for rollout_id in decision.rollout_ids}

    def ready(groups: list[Group]) -> list[Group] | None:
        complete = [group for group in groups if group.complete and group.uid in uids]
        return complete if len(complete) == len(uids) else None

    return ready


def must_have_rows(groups: Sequence[Group], step: int) -> None:
    """Raises NothingToTrain if no group has a row."""
    if not any(group.rows for group in groups):
        reasons = Counter(outcome.failure for outcome in _outcomes(groups))
        said = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(5)) or "none was asked for"
        raise NothingToTrain(f"no rollout of step {step} can be used: {said}")


def decide(branch: str, step: int, trigger: int, groups: Sequence[Group], most_rows: int | None) -> Decision:
    """Choose every row of the groups, or `most_rows` of them; the rest, and what has no rows, is left out."""
    outcomes = _outcomes(groups)
    left_out = {each.rollout_id: each.failure for each in outcomes if not each.rows}
    used = [each for each in outcomes if each.rows]
    kept = [RowKey.parse(key) for each in used for key in each.rows]
    if most_rows is not None:
        rewards = [(RowKey.parse(key), each.reward) for each in used for key in each.rows]
        kept = rows_within(rewards, most_rows, f"{branch}.{step}")
    wanted = set(kept)
    chosen = []
    for each in used:
        rows = tuple(key.row for key in map(RowKey.parse, each.rows) if key in wanted)
        if rows:
            chosen.append(Chosen(each.rollout_id, rows, each.reward, each.digest))
        else:
            left_out[each.rollout_id] = "surplus"
    return Decision.of(branch, step, trigger, chosen, left_out)


def must_match(decision: Decision, groups: Sequence[Group]) -> None:
    """Raises BatchMissing unless the groups give exactly what the decision trained on."""
    found = {outcome.rollout_id: outcome for outcome in _outcomes(groups)}
    for chosen in decision.chosen:
        outcome = found.get(chosen.rollout_id)
        if outcome is None or outcome.digest != chosen.digest:
            now = "it was not asked for" if outcome is None else outcome.failure or f"its rows are now {outcome.digest}"
            raise BatchMissing(
                f"step {decision.step} is on record with rollout {chosen.rollout_id} ({chosen.digest}), but {now}; "
                "the log has lost what was trained on: go on from an older checkpoint, or under another run"
            )


def metrics_of(groups: Sequence[Group], prefix: str) -> dict[str, float]:
    """What a batch is made of: rollouts used, left out and filled, their rewards, and calls dropped by reason."""
    outcomes = _outcomes(groups)
    dropped: Counter[str] = Counter()
    for each in outcomes:
        dropped.update(each.dropped)
    rewards = [each.reward for each in outcomes if each.rows]
    return {
        f"{prefix}/rollouts/reward/mean": sum(rewards) / max(len(rewards), 1),
        f"{prefix}/rollouts/used": len(rewards),
        f"{prefix}/rollouts/left_out": len(outcomes) - len(rewards),
        f"{prefix}/rollouts/failed_and_filled": sum(each.filled for each in outcomes),
        f"{prefix}/rollouts/reward_filled": sum(each.reward_filled for each in outcomes),
        **{f"{prefix}/calls_dropped/{reason}": calls for reason, calls in sorted(dropped.items())},
    }


def _outcomes(groups: Sequence[Group]) -> list[Outcome]:
    return [outcome for group in groups for _, outcome in sorted(group.outcomes.items())]
