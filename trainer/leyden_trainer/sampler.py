"""Which rows make the next batch: verl's replay buffer, deciding on record.

Invariants:
- a batch that is on record is followed to the row; otherwise the earliest complete groups are chosen, in order of draw,
  repeat and row, and the decision is on record before anything is trained on;
- it is woken when rollouts are settled, never looks by itself, and waits with a deadline.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from leyden_trainer.decisions import Chosen, Decision, rows_within
from leyden_trainer.groups import Group, Groups, Outcome
from leyden_trainer.ids import RowKey, parse_rollout_id, uid

_TRAIN = "train"


class NothingToTrain(RuntimeError):
    """Every rollout of a batch failed, or none of its rows can be trained on; says why."""


class BatchMissing(RuntimeError):
    """A batch that is on record can't be built again from the log."""


class DecidingSampler(ReplayBuffer):
    """Samples from `groups`. `recorded` finds the decision for a step and trigger, `record` writes one.

    `most_rows` is the most that one batch may have, None for no limit; `stalled_after_seconds` is how long nothing may
    move while rollouts are awaited. The rest is what verl gives every replay buffer.
    """

    def __init__(
        self,
        groups: Groups,
        branch: str,
        recorded: Callable[[int, int], Decision | None],
        record: Callable[[Decision], None],
        *,
        most_rows: int | None,
        stalled_after_seconds: float,
        **of_verl: Any,
    ) -> None:
        super().__init__(**of_verl)
        self._board = groups
        self._branch = branch
        self._recorded = recorded
        self._record = record
        self._most_rows = most_rows
        self._stalled_after_seconds = stalled_after_seconds
        self._place = (-1, -1)
        self._validation_metrics: Counter[str] = Counter()

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The rows of `batch_size` groups, in order, and metrics about them.

        Raises:
            RolloutsStalled: nothing has moved for too long.
            NothingToTrain: no group has a row.
            BatchMissing: the batch on record needs rows that the log does not give any more.
        """
        decision = self._decided(global_steps) if partition_id == _TRAIN else None
        ready = _earliest(batch_size) if decision is None else _those_of(decision)
        groups = self._board.wait(ready, partition_id, self._stalled_after_seconds)
        rows = {key: tag for group in groups for key, tag in group.rows.items()}
        if not rows:
            raise NothingToTrain(f"no rollout of step {global_steps} ({partition_id}) can be used: {_reasons(groups)}")
        if decision is not None:
            _must_match(decision, groups)
        elif partition_id == _TRAIN:
            decision = self._decide(global_steps, groups)
            self._record(decision)
        keys = list(rows) if decision is None else decision.keys
        self._board.take(group.uid for group in groups)
        surplus = [key for key in rows if key not in set(keys)]
        tq.kv_clear(keys=[*(group.uid for group in groups), *surplus], partition_id=partition_id)
        metrics = _metrics(partition_id, groups) | {f"{_prefix(partition_id)}/rows/surplus": len(surplus)}
        if partition_id != _TRAIN:
            self._validation_metrics.update(metrics)
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[rows[key] for key in keys]), metrics

    def take_validation_metrics(self) -> dict[str, float]:
        """What the batches of the last validation were made of, which verl's validation does not report itself."""
        metrics, self._validation_metrics = self._validation_metrics, Counter()
        return {name: float(value) for name, value in metrics.items()}

    def _decided(self, step: int) -> Decision | None:
        """The decision on record for the next batch of a step."""
        known_step, trigger = self._place
        self._place = (step, trigger + 1 if step == known_step else 0)
        return self._recorded(*self._place)

    def _decide(self, step: int, groups: Sequence[Group]) -> Decision:
        outcomes = [outcome for group in groups for _, outcome in sorted(group.outcomes.items())]
        left_out = {each.rollout_id: each.failure for each in outcomes if not each.rows}
        used = [each for each in outcomes if each.rows]
        kept = {key for each in used for key in each.rows}
        if self._most_rows is not None:
            rewards = [(RowKey.parse(key), each.reward) for each in used for key in each.rows]
            kept = {str(key) for key in rows_within(rewards, self._most_rows, f"{self._branch}.{step}")}
        chosen = []
        for each in used:
            rows = tuple(RowKey.parse(key).row for key in each.rows if key in kept)
            if rows:
                chosen.append(Chosen(each.rollout_id, rows, each.reward, each.digest))
            else:
                left_out[each.rollout_id] = "surplus"
        return Decision.of(self._branch, step, self._place[1], chosen, left_out)


def _earliest(count: int) -> Callable[[list[Group]], list[Group] | None]:
    def ready(groups: list[Group]) -> list[Group] | None:
        complete = [group for group in groups if group.complete]
        return complete[:count] if len(complete) >= count else None

    return ready


def _those_of(decision: Decision) -> Callable[[list[Group]], list[Group] | None]:
    uids = {uid(parse_rollout_id(rollout_id)[0].draw) for rollout_id in decision.rollout_ids}

    def ready(groups: list[Group]) -> list[Group] | None:
        complete = [group for group in groups if group.complete and group.uid in uids]
        return complete if len(complete) == len(uids) else None

    return ready


def _must_match(decision: Decision, groups: Sequence[Group]) -> None:
    found: dict[str, Outcome] = {outcome.rollout_id: outcome for group in groups for outcome in group.outcomes.values()}
    for chosen in decision.chosen:
        outcome = found.get(chosen.rollout_id)
        if outcome is None or outcome.digest != chosen.digest:
            now = "it was not asked for" if outcome is None else outcome.failure or f"its rows are now {outcome.digest}"
            raise BatchMissing(
                f"step {decision.step} is on record with rollout {chosen.rollout_id} ({chosen.digest}), but {now}; "
                "the log has lost what was trained on: go on from an older checkpoint, or under another run"
            )


def _metrics(partition: str, groups: Sequence[Group]) -> dict[str, float]:
    outcomes = [outcome for group in groups for outcome in group.outcomes.values()]
    dropped: Counter[str] = Counter()
    for each in outcomes:
        dropped.update(each.dropped)
    prefix = _prefix(partition)
    rewards = [each.reward for each in outcomes if each.rows]
    return {
        f"{prefix}/rollouts/reward/mean": sum(rewards) / len(rewards),
        f"{prefix}/rollouts/used": sum(bool(each.rows) for each in outcomes),
        f"{prefix}/rollouts/left_out": sum(not each.rows for each in outcomes),
        f"{prefix}/rollouts/failed_and_filled": sum(each.filled for each in outcomes),
        f"{prefix}/rollouts/reward_filled": sum(each.reward_filled for each in outcomes),
        **{f"{prefix}/calls_dropped/{reason}": calls for reason, calls in sorted(dropped.items())},
    }


def _prefix(partition: str) -> str:
    return "training" if partition == _TRAIN else "validation"


def _reasons(groups: Sequence[Group]) -> str:
    counted = Counter(outcome.failure for group in groups for outcome in group.outcomes.values())
    return "; ".join(f"{calls} × {reason}" for reason, calls in counted.most_common(5)) or "none was asked for"
