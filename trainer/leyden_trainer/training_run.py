"""Everything of Leyden's that one training process needs, put together."""

import os
from collections.abc import Sequence
from typing import Any

import ray
from omegaconf import DictConfig

from leyden.hooks import load_hooks
from leyden.log import Log
from leyden_trainer.branches import BRANCH, branch_record, choose_branches, digest_with_rows
from leyden_trainer.checks import config_digest
from leyden_trainer.dataset import Rows
from leyden_trainer.decisions import Decisions
from leyden_trainer.engines import Engines
from leyden_trainer.engines.openai_servers import OpenAIServers
from leyden_trainer.engines.verl_replicas import VerlReplicas
from leyden_trainer.groups import Groups
from leyden_trainer.hook_runner import HookRunner
from leyden_trainer.log_thread import LogThread
from leyden_trainer.manager import RolloutManager, Rules
from leyden_trainer.resume import CheckpointState, find_resume
from leyden_trainer.sampler import DecidingSampler
from leyden_trainer.session import Session
from leyden_trainer.settings import EngineKind, FailedRollouts, LeydenSettings
from leyden_trainer.transfer import put_rows
from leyden_trainer.updates import WeightUpdates
from leyden_trainer.verl_config import WEIGHT_FILE_BACKEND, served_model


class TrainingRun:
    """One process's training of one run, from the lease on; made before `fit_verl` changes the configuration."""

    def __init__(self, config: DictConfig, settings: LeydenSettings, train: Rows, val: Rows, redis_url: str) -> None:
        self._config = config
        self._settings = settings
        self.resume = find_resume(config.trainer, settings.run)
        digest = digest_with_rows(config_digest(config, settings), [*train.encoded, b"", *val.encoded])
        rollout = config.actor_rollout_ref.rollout

        self._groups = Groups()
        self._thread = LogThread(on_failure=self._groups.fail)
        self._log = Log.connect(redis_url)
        self.session = Session(
            self._log,
            settings.run,
            self._thread,
            lease_seconds=settings.lease_seconds,
            log_timeout_seconds=settings.log_timeout_seconds,
        )
        rules = settings.run_settings(rollout.temperature)
        self.session.open(rules.model_copy(update={"model": served_model(config, settings)}))
        entries = self.session.steps()
        self.branches = choose_branches(settings.run, self.resume, entries, digest, settings.branch)
        self._on_record = {entry.step_id for entry in entries}
        self.session.record(BRANCH, branch_record(self.branches, self.resume, digest), f"{BRANCH}.{self.branch}")
        self.session.abandon_other_branches(self.branch)
        self._decisions = Decisions(self.session.run.steps, self.branch)
        self._call(self._decisions.load(), "reading recorded batches")
        self.manager = self._manager((train, val))
        self._thread.spawn(self.manager.work())
        self._updates: WeightUpdates | None = None

    @property
    def branch(self) -> str:
        return self.branches[0]

    @property
    def samples_with_verl(self) -> bool:
        """Whether verl's own replicas sample."""
        return self._settings.engines.kind is EngineKind.VERL

    def record(self, kind: str, data: dict[str, Any], *place: int) -> None:
        """Put a step of this branch on record, once a place."""
        self.session.record(kind, data, self._step_id(kind, *place))

    def was_on_record(self, kind: str, *place: int) -> bool:
        """Whether an earlier life of this trainer put that on record."""
        return self._step_id(kind, *place) in self._on_record

    def sampler(self, **of_verl: Any) -> DecidingSampler:
        """verl's replay buffer for this run."""
        return DecidingSampler(
            self._groups,
            self.branch,
            self._decisions.recorded,
            lambda decision: self._call(self._decisions.record(decision, self.session.epoch), "recording a batch"),
            most_rows=self._most_rows(),
            stalled_after_seconds=self._settings.progress_timeout_seconds,
            **of_verl,
        )

    def updates(self, trainer: Any) -> WeightUpdates:
        """What brings the weights of verl's `trainer`, whose parts exist, to the servers."""
        self._updates = WeightUpdates(
            self.session,
            self._engines(trainer),
            branch=self.branch,
            model=served_model(self._config, self._settings),
            drain_timeout_seconds=self._settings.drain_timeout_seconds,
            needed=self._groups.waiting,
        )
        return self._updates

    def checkpoint_state(self, step: int, drawn: int) -> CheckpointState:
        """What a checkpoint must hold of Leyden's."""
        return CheckpointState(
            run=self.session.run.run,
            step=step,
            drawn=drawn,
            branches=self.branches,
            completions=self.manager.completions_read,
        )

    def close(self, *, finished: bool) -> None:
        """Give up the run; once."""
        try:
            self.session.close(finished=finished)
        finally:
            self._thread.close(self._log.close)

    def _step_id(self, kind: str, *place: int) -> str:
        return ".".join([self.branch, kind, *map(str, place)])

    def _most_rows(self) -> int | None:
        times = self._settings.max_ppo_update_times
        if times is None:
            return None
        return (
            times * self._config.actor_rollout_ref.actor.ppo_mini_batch_size * self._config.actor_rollout_ref.rollout.n
        )

    def _manager(self, inputs: tuple[Sequence[Any], Sequence[Any]]) -> RolloutManager:
        settings, config = self._settings, self._config
        rollout = config.actor_rollout_ref.rollout
        run = self.session.run
        return RolloutManager(
            run,
            self._thread,
            self._groups,
            inputs,
            self.branches,
            Rules(
                config=settings.rollout_config(),
                train_repeats=rollout.n,
                val_repeats=rollout.val_kwargs.n,
                tries=settings.rollout_tries,
                fill_failed=settings.failed_rollouts is FailedRollouts.FILL,
                fill_reward=settings.reward_fillna_value,
                aggregation=settings.aggregation(config.data.max_prompt_length, config.data.max_response_length),
                log_timeout_seconds=settings.log_timeout_seconds,
            ),
            HookRunner(load_hooks(settings.hooks), run) if settings.hooks else None,
            put_rows,
            self._bring_up_to_date,
        )

    def _bring_up_to_date(self) -> None:
        if self._updates is not None:
            self._updates.bring_up_to_date()

    def _engines(self, trainer: Any) -> Engines:
        if self.samples_with_verl:
            return VerlReplicas(trainer.llm_server_manager, trainer.checkpoint_manager)
        settings = self._settings.engines

        def write_weights(step: int) -> dict[str, float]:
            of_ranks = ray.get(trainer.actor_rollout_wg.update_weights(global_steps=step, mode=WEIGHT_FILE_BACKEND))
            return {name: value for metrics in of_ranks for name, value in (metrics or {}).items()}

        served_dir = settings.server_weights_dir or os.path.abspath(str(settings.weights_dir))
        return OpenAIServers(settings.urls, write_weights, served_dir, settings.timeout_seconds)

    def _call(self, work: Any, doing: str) -> Any:
        return self._thread.call(work, doing, self._settings.log_timeout_seconds)
