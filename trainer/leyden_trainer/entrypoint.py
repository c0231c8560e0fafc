"""How training starts: `train(config, train, val)`, and `run_ppo`, its name in Agent Lightning."""

import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden_trainer.checks import check
from leyden_trainer.dataset import Rows
from leyden_trainer.platforms import cpu_settings
from leyden_trainer.progress import StepProgress
from leyden_trainer.resume import find_resume
from leyden_trainer.settings import LeydenSettings, SettingsInvalid
from leyden_trainer.task_runner import RunnerFor, TaskRunner


class LogUnknown(ValueError):
    """Nothing says where the log is."""


def train(
    config: DictConfig, train: Iterable[Any], val: Iterable[Any], *, task_runner: type[TaskRunner] = TaskRunner
) -> None:
    """Train on rows of JSON, each the input of the rollouts that run on it; returns when training is done.

    Called again with the same configuration, it goes on from the newest checkpoint, and finds the rollouts that ran.

    Raises:
        SettingsInvalid: the configuration can't be trained with; names every reason.
        RowInvalid: a row is not JSON.
        CheckpointInvalid: the checkpoints can't tell where to go on.
        LogUnknown: neither `leyden.redis_url` nor LEYDEN_REDIS_URL is set.
    """
    config = config.copy()
    _complete(config)
    settings = LeydenSettings.from_config(config)
    redis_url = settings.redis_url or os.environ.get("LEYDEN_REDIS_URL")
    if not redis_url:
        raise LogUnknown("set LEYDEN_REDIS_URL or leyden.redis_url to the Redis that holds the log")
    check(config, settings)
    find_resume(config.trainer)
    train_rows, val_rows = Rows(train), Rows(val)
    empty = [name for name, rows in (("train", train_rows), ("val", val_rows)) if not rows]
    if empty:
        raise SettingsInvalid([f"there are no {name} rows" for name in empty])
    if config.trainer.device == "cpu":
        cpu_settings.prepare(config)
    _forget_secrets(config)
    with StepProgress(redis_url, settings.run) if sys.stderr.isatty() else nullcontext():
        _run(config, RunnerFor(task_runner, train_rows, val_rows, redis_url))


run_ppo = train


def _run(config: DictConfig, runner: RunnerFor) -> None:
    # verl is imported here, not above: which device it is for stands in the environment, and that in the configuration.
    from verl.trainer import main_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    main_ppo.run_ppo(config, task_runner_class=runner)


_PATHS = (
    "trainer.default_local_dir",
    "actor_rollout_ref.model.path",
    *(f"{section}.{name}" for section in ("leyden", "agentlightning") for name in ("hooks", "k8s.job_template_path")),
    "leyden.engines.weights_dir",
)
"""Settings that may be paths below the working directory, which Ray's processes need not share."""


def _complete(config: DictConfig) -> None:
    """Make paths absolute, and choose an engine where none is chosen."""
    with open_dict(config):
        for name in _PATHS:
            path = OmegaConf.select(config, name)
            # A model may also be named as a hub names it.
            if path and (name != "actor_rollout_ref.model.path" or os.path.isdir(path)):
                OmegaConf.update(config, name, os.path.abspath(path))
        if OmegaConf.is_missing(config.actor_rollout_ref.rollout, "name"):
            config.actor_rollout_ref.rollout.name = "vllm"


def _forget_secrets(config: DictConfig) -> None:
    """verl prints its configuration and hands it to experiment trackers."""
    with open_dict(config):
        for name in ("leyden.redis_url", "agentlightning.agl_key"):
            if OmegaConf.select(config, name) is not None:
                OmegaConf.update(config, name, None)
