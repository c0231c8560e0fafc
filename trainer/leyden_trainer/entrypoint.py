"""How training starts: `train(config, train, val)`, and `run_ppo`, its name in Agent Lightning."""

import os
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict

from leyden_trainer.checks import check
from leyden_trainer.dataset import Rows
from leyden_trainer.platforms import cpu_settings
from leyden_trainer.progress import StepProgress
from leyden_trainer.settings import LeydenSettings, SettingsInvalid
from leyden_trainer.task_runner import TaskRunner


def train(
    config: DictConfig, train: Iterable[Any], val: Iterable[Any], *, task_runner: type[TaskRunner] = TaskRunner
) -> None:
    """Train on rows of JSON, each the input of the rollouts that run on it; returns when training is done.

    Called again with the same configuration, it goes on from the newest checkpoint, and finds the rollouts that ran.

    Raises:
        SettingsInvalid: the configuration can't be trained with; names every reason.
        RowInvalid: a row is not JSON.
    """
    settings = LeydenSettings.from_config(config)
    check(config, settings)
    train_rows, val_rows = Rows(train), Rows(val)
    empty = [name for name, rows in (("train", train_rows), ("val", val_rows)) if not rows]
    if empty:
        raise SettingsInvalid([f"there are no {name} rows" for name in empty])
    config = config.copy()
    _make_paths_absolute(config)
    if config.trainer.device == "cpu":
        cpu_settings.prepare(config)
    url = settings.redis_url or os.environ.get("LEYDEN_REDIS_URL")
    with StepProgress(url, settings.run) if url and sys.stderr.isatty() else nullcontext():
        _run(config, task_runner, train_rows, val_rows)


run_ppo = train


def _run(config: DictConfig, task_runner: type[TaskRunner], train_rows: Rows, val_rows: Rows) -> None:
    # verl is imported here, not above: which device it is for stands in the environment, and that in the configuration.
    from verl.trainer import main_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from leyden_trainer.task_runner import RunnerFor

    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    main_ppo.run_ppo(config, task_runner_class=RunnerFor(task_runner, train_rows, val_rows))


def _make_paths_absolute(config: DictConfig) -> None:
    """Ray's processes may have another working directory."""
    with open_dict(config):
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).absolute())
        if os.path.isdir(path := str(config.actor_rollout_ref.model.path)):
            config.actor_rollout_ref.model.path = os.path.abspath(path)
