"""How training starts: `train(config, train, val)`, and `run_ppo`, its name in Agent Lightning."""

import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import structlog
from omegaconf import DictConfig, OmegaConf, open_dict

from leyden.log import Log
from leyden_trainer.checks import check
from leyden_trainer.dataset import Rows
from leyden_trainer.log_thread import LogThread
from leyden_trainer.platforms import cpu_settings
from leyden_trainer.progress import StepProgress
from leyden_trainer.resume import find_resume
from leyden_trainer.settings import LeydenSettings, SettingsInvalid
from leyden_trainer.task_runner import RunnerFor, TaskRunner

logger = structlog.get_logger(__name__)

_INSPECT_SECONDS = 60.0


def train(
    config: DictConfig, train: Iterable[Any], val: Iterable[Any], *, task_runner: type[TaskRunner] = TaskRunner
) -> None:
    """Train on rows of JSON, each the input of the rollouts that run on it; returns when training is done.

    Called again with the same configuration, it goes on from the newest checkpoint, and finds the rollouts that ran.

    Raises:
        SettingsInvalid: the configuration can't be trained with; names every reason.
        RowInvalid: a row is not JSON.
        CheckpointInvalid: the checkpoints can't tell where to go on.
        LogUnavailable, ServerUnsupported, LogAddressInvalid: the log can't be kept where the configuration says.
    """
    config = config.copy()
    settings, redis_url = settled(config)
    find_resume(config.trainer, settings.run)
    train_rows, val_rows = Rows(train), Rows(val)
    empty = [name for name, rows in (("train", train_rows), ("val", val_rows)) if not rows]
    if empty:
        raise SettingsInvalid([f"there are no {name} rows" for name in empty])
    if config.trainer.device == "cpu":
        cpu_settings.prepare(config)
    _must_keep_a_log(redis_url)
    _forget_secrets(config)
    with StepProgress(redis_url, settings.run) if sys.stderr.isatty() else nullcontext():
        _run(config, RunnerFor(task_runner, train_rows, val_rows, redis_url))


run_ppo = train


def settled(config: DictConfig) -> tuple[LeydenSettings, str]:
    """Leyden's settings and the log's address, of a configuration that is completed in place.

    Raises:
        SettingsInvalid: names everything in it that can't be trained with.
    """
    _complete(config)
    problems: list[str] = []
    settings = LeydenSettings.from_config(config)
    redis_url = settings.redis_url or os.environ.get("LEYDEN_REDIS_URL")
    if not redis_url:
        problems.append("set LEYDEN_REDIS_URL or leyden.redis_url to the Redis that holds the log")
    try:
        check(config, settings)
    except SettingsInvalid as refused:
        problems += refused.problems
    if problems:
        raise SettingsInvalid(problems)
    return settings, str(redis_url)


def _must_keep_a_log(redis_url: str) -> None:
    """Say what is wrong with the log's Redis, or raise what makes it useless, before Ray and verl take minutes."""
    thread = LogThread()
    try:
        report = thread.call(Log.inspect_at(redis_url), "asking Redis about itself", _INSPECT_SECONDS)
    finally:
        thread.close()
    for problem in report.problems:
        logger.warning("the log may lose what it holds", problem=problem)


def _run(config: DictConfig, runner: RunnerFor) -> None:
    # verl is imported here, not above: which device it is for stands in the environment, and that in the configuration.
    from verl.trainer import main_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except (AssertionError, ValueError) as error:
        raise SettingsInvalid([f"verl refuses the configuration: {error}"]) from error
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
            if path and (name != "actor_rollout_ref.model.path" or os.path.isdir(os.path.expanduser(path))):
                OmegaConf.update(config, name, os.path.abspath(os.path.expanduser(path)))
        if OmegaConf.is_missing(config.actor_rollout_ref.rollout, "name"):
            config.actor_rollout_ref.rollout.name = "vllm"
        if config.trainer.device == "cpu":
            cpu_settings.choose_defaults(config)


def _forget_secrets(config: DictConfig) -> None:
    """verl prints its configuration and hands it to experiment trackers."""
    with open_dict(config):
        for name in ("leyden.redis_url", "agentlightning.agl_key"):
            if OmegaConf.select(config, name) is not None:
                OmegaConf.update(config, name, None)
