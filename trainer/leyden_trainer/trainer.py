"""verl's v1 trainer, reading its batches from the log.

What is Leyden's is in one class that goes before any of verl's trainers; what differs by mode stays verl's own.

Invariants:
- a batch is on record before anything is trained on it, and its rollouts are acknowledged only when a checkpoint that
  includes the update is committed;
- verl's name for a prompt is its draw: prompts are counted as they come from the data loader, and the count is part of
  the checkpoint.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import structlog
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils import tensordict_utils

from leyden_trainer.advantage import PerRollout
from leyden_trainer.branches import CHECKPOINT
from leyden_trainer.ids import uid
from leyden_trainer.sampler import DecidingSampler
from leyden_trainer.training_run import TrainingRun

logger = structlog.get_logger(__name__)

ASKED, UPDATE, VALIDATING, VALIDATION = "asked", "update", "validating", "validation"


class FromTheLog:
    """What makes a trainer of verl's train on what the log says. Goes before verl's class in the bases.

    Attributes named here and not set are verl's.
    """

    config: DictConfig
    global_steps: int
    checkpoint_manager: Any
    replay_buffer: Any

    def __init__(self, config: DictConfig, training: TrainingRun) -> None:
        self.training = training
        self._enable_hybrid_replicas = training.samples_with_verl
        self._drawn = 0
        self._saved_step = training.resume.step
        super().__init__(config)  # type: ignore[call-arg]
        self.checkpoint_callback = _Committed(self, self.checkpoint_callback)  # type: ignore[has-type]

    # What verl asks of its parts

    def _build_replay_buffer(self) -> DecidingSampler:
        sampler = self.config.trainer.v1.sampler
        mode = self.config.trainer.v1.trainer_mode
        return self.training.sampler(
            trainer_mode=mode,
            trainer_config=self.config.trainer.v1.get(mode, {}),
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
        )

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # type: ignore[misc]
        if self.config.trainer.device == "cpu":
            from leyden_trainer.platforms.cpu_workers import CpuActorRolloutRefWorker

            roles: dict[Role, Any] = self.role_worker_mapping  # type: ignore[attr-defined]
            roles |= dict.fromkeys(roles, ray.remote(CpuActorRolloutRefWorker))

    def on_init_end(self) -> None:
        self.checkpoint_manager = self.updates = self.training.updates(self)
        super().on_init_end()  # type: ignore[misc]

    # Prompts

    def _fetch_one_gen_batch(self) -> Any:
        batch = super()._fetch_one_gen_batch()  # type: ignore[misc]
        drawn = range(self._drawn, self._drawn + len(batch))
        tensordict_utils.assign_non_tensor_stack(batch, "uid", [uid(draw) for draw in drawn])
        self._drawn = drawn.stop
        return batch

    def _submit_batch_to_rollout(self, batch: Any) -> int:
        draws = range(self._drawn - len(batch), self._drawn)
        rollouts = len(batch) * self.config.actor_rollout_ref.rollout.n
        self._record(ASKED, {"draws": [draws.start, draws.stop], "rollouts": rollouts}, draws.start)
        return super()._submit_batch_to_rollout(batch)  # type: ignore[misc]

    def prepare_step(self) -> dict[str, Any]:
        return super().prepare_step() | self.updates.take_metrics()  # type: ignore[misc]

    # A step

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        started = time.monotonic()
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)  # type: ignore[misc]
        tokens = sum(tag["response_len"] for tag in batch.tags if not tag.get("is_padding", False))
        metrics["training/tokens_per_second"] = tokens / max(time.monotonic() - started, 1e-9)
        self._record(UPDATE, {"metrics": _numbers(metrics)}, self.local_trigger_step)  # type: ignore[attr-defined]
        return batch

    def _validate(self) -> dict[str, float]:
        repeats = self.config.actor_rollout_ref.rollout.val_kwargs.n
        self._record(VALIDATING, {"rollouts": len(self.val_dataset) * repeats})  # type: ignore[attr-defined]
        metrics = super()._validate() | self.replay_buffer.take_validation_metrics()  # type: ignore[misc]
        self._record(VALIDATION, {"metrics": _numbers(metrics)})
        return metrics

    def _consume_sync_metrics(self) -> dict[str, Any]:
        return super()._consume_sync_metrics() | self.updates.take_metrics()  # type: ignore[misc]

    # Checkpoints

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        resume = self.training.resume
        if self.global_steps != resume.step:
            raise RuntimeError(f"verl resumed from step {self.global_steps}, Leyden from step {resume.step}")
        self._drawn = (
            resume.state.drawn if resume.state is not None else resume.step * self.config.data.train_batch_size
        )

    def _save_checkpoint(self) -> None:
        self.training.session.check()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        self.training.checkpoint_state(self.global_steps, self._drawn).write(folder)
        super()._save_checkpoint()  # type: ignore[misc]

    def committed(self, step: int, folder: str) -> None:
        """A checkpoint is committed: put it on record and let go of what it holds."""
        self._saved_step = step
        self._record(CHECKPOINT, {"folder": folder})
        freed = self.training.manager.acknowledge(self._drawn, step, self.training.session.epoch)
        logger.info("checkpoint committed", step=step, acknowledged=freed)

    def _validation_was_cut_short(self) -> bool:
        """Whether the step that training goes on from was to be validated, and its trainer died before that."""
        step, frequency = self.training.resume.step, self.config.trainer.test_freq
        last = self.total_training_steps  # type: ignore[attr-defined]
        due = frequency > 0 and step > 0 and (step % frequency == 0 or step >= last)
        return due and not self.training.was_on_record(VALIDATION, step)

    def _record(self, kind: str, data: dict[str, Any], *place: int) -> None:
        """Put something that happened in this step on record."""
        step = self.global_steps
        self.training.record(kind, {"step": step, "branch": self.training.branch} | data, step, *place)

    # The end

    def fit(self, agent_loop_manager: Any) -> None:
        if self._validation_was_cut_short():
            self.config.trainer.val_before_train = True
        super().fit(agent_loop_manager)  # type: ignore[misc]
        trained = self.global_steps if self._saved_step == self.global_steps else self.global_steps - 1
        if self._saved_step < trained:  # verl saves at its last step, but not where the epochs ran out before
            self.global_steps = trained
            self._save_checkpoint()
        self.updates.bring_up_to_date()
        self.training.manager.acknowledge_everything(self.training.session.epoch)


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float | np.number)}


class _Committed(CheckpointCallback):
    """Tells the trainer that a checkpoint is committed, then the user's own callback."""

    def __init__(self, trainer: FromTheLog, users: CheckpointCallback) -> None:
        super().__init__(users.config)
        self._trainer = trainer
        self._users = users

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        self._trainer.committed(global_step, checkpoint_dir)
        self._users.on_save(
            trainer=trainer, global_step=global_step, checkpoint_dir=checkpoint_dir, async_save=async_save, **kwargs
        )


class LeydenTrainerSync(FromTheLog, PerRollout, PPOTrainerSync):
    """Trains in steps: ask, wait, update, load the new weights."""
