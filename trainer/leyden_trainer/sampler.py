"""Which rows make the next batch: verl's replay buffer, deciding on record.

Invariants:
- a batch that is on record is followed to the row; otherwise the earliest complete groups are chosen, in order of draw,
  repeat and row, and the decision is on record before anything is trained on;
- it is woken when rollouts are settled, never looks by itself, and waits with a deadline.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from leyden_trainer import choosing
from leyden_trainer.decisions import Decision
from leyden_trainer.groups import Groups

_TRAIN = "train"


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
        self._groups = groups
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
        ready = choosing.earliest(batch_size) if decision is None else choosing.those_of(decision)
        groups = self._groups.wait(ready, partition_id, self._stalled_after_seconds)
        choosing.must_have_rows(groups, global_steps)
        if decision is not None:
            choosing.must_match(decision, groups)
        elif partition_id == _TRAIN:
            decision = choosing.decide(self._branch, *self._place, groups, self._most_rows)
            self._record(decision)
        rows = {key: tag for group in groups for key, tag in group.rows.items()}
        keys = list(rows) if decision is None else decision.keys
        uids = [group.uid for group in self._groups.take(group.uid for group in groups)]
        surplus = rows.keys() - set(keys)
        tq.kv_clear(keys=[*uids, *surplus], partition_id=partition_id)
        prefix = "training" if partition_id == _TRAIN else "validation"
        metrics = choosing.metrics_of(groups, prefix) | {f"{prefix}/rows/surplus": len(surplus)}
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
