"""The Ray actor in which training runs: verl's task runner, with Leyden's trainer and manager in it."""

from typing import Any

import ray
import structlog
from omegaconf import DictConfig, OmegaConf

from leyden.log.errors import InputDiffers, LeaseHeld, LeaseLost, LogFull, LogUnavailable
from leyden_trainer.choosing import BatchMissing, NothingToTrain
from leyden_trainer.dataset import Rows
from leyden_trainer.engines import EngineError
from leyden_trainer.resume import CheckpointInvalid

logger = structlog.get_logger(__name__)

_SAY_WHAT_TO_DO = (
    *(LogUnavailable, LogFull, LeaseHeld, LeaseLost, InputDiffers),
    *(EngineError, NothingToTrain, BatchMissing, CheckpointInvalid, TimeoutError),
)
"""Errors that a person can do something about without reading a traceback."""


class TrainingStopped(RuntimeError):
    """Training had to stop; the message says why. It can travel between processes, which not every error can."""


class TaskRunner:
    """Trains with `trainer_class` on `train` and `val`, sequences of rows, over the log in the Redis at `redis_url`."""

    trainer_class: Any = None
    """A trainer of verl's with `FromTheLog` before it; None chooses by `trainer.v1.trainer_mode`."""

    def __init__(self, train: Rows, val: Rows, redis_url: str) -> None:
        self._train = train
        self._val = val
        self._redis_url = redis_url

    def run(self, config: DictConfig) -> None:
        """Train to the end, or go on where a checkpoint says.

        Raises:
            TrainingStopped: something happened that a person can do something about.
        """
        try:
            self._run(config)
        except _SAY_WHAT_TO_DO as error:
            logger.error("training stopped", error=repr(error), notes=getattr(error, "__notes__", []))
            raise TrainingStopped(f"{error}") from error

    def _run(self, config: DictConfig) -> None:
        import transfer_queue as tq
        from verl.utils.logging_utils import configure_verl_logging

        from leyden_trainer.settings import LeydenSettings
        from leyden_trainer.training_run import TrainingRun
        from leyden_trainer.verl_config import fit_verl

        configure_verl_logging()
        settings = LeydenSettings.from_config(config)
        training = TrainingRun(config, settings, self._train, self._val, self._redis_url)
        finished = False
        try:
            fit_verl(config, settings, len(self._train), len(self._val))
            config.transfer_queue.enable = True
            OmegaConf.resolve(config)
            tq.init(config.transfer_queue)
            try:
                self._fit(config, training)
                finished = True
            finally:
                tq.close()
        finally:
            training.close(finished=finished)

    def _fit(self, config: DictConfig, training: Any) -> None:
        from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

        from leyden_trainer.trainer import LeydenTrainerSync
        from leyden_trainer.verl_config import ROLLOUT_NAME

        RolloutReplicaRegistry.register(ROLLOUT_NAME, lambda: RolloutReplica)
        trainer_class: Any = self.trainer_class or LeydenTrainerSync
        trainer = trainer_class(config, training)
        succeeded = False
        try:
            trainer.init()
            logger.info("training", run=training.session.run.run, branch=training.branch, step=training.resume.step)
            trainer.fit(training.manager)
            succeeded = True
        finally:
            if (tracking := getattr(trainer, "logger", None)) is not None:
                tracking.finish(exit_code=0 if succeeded else 1)


class RunnerFor:
    """What verl's `run_ppo` makes its task runner with: an actor class and what it is made with."""

    def __init__(self, runner: type[TaskRunner], train: Rows, val: Rows, redis_url: str) -> None:
        self._actor = ray.remote(runner)
        self._arguments = (train, val, redis_url)

    def options(self, **options: Any) -> "RunnerFor":
        self._actor = self._actor.options(**options)
        return self

    def remote(self) -> Any:
        return self._actor.remote(*self._arguments)
