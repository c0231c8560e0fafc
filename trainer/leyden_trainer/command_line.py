"""What stands on the trainer's command line, and what a person is told of how training ended."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from leyden.log.errors import LogAddressInvalid, LogUnavailable, ServerUnsupported
from leyden_trainer.config import load
from leyden_trainer.dataset import RowInvalid
from leyden_trainer.entrypoint import settled, train
from leyden_trainer.log_thread import LogThreadTimeout
from leyden_trainer.resume import CheckpointInvalid
from leyden_trainer.row_sources import RowsInvalid, load_rows
from leyden_trainer.settings import SettingsInvalid
from leyden_trainer.task_runner import TrainingStopped

_REFUSED = (SettingsInvalid, RowsInvalid, RowInvalid, CheckpointInvalid, LogAddressInvalid, ServerUnsupported)


def parse(arguments: list[str]) -> argparse.Namespace:
    """What is asked for: `config`, a path or None, and `overrides`, a list; exits if that is help, or can't be."""
    parser = argparse.ArgumentParser(
        prog="python -m leyden_trainer", description="Train on the rows that are configured."
    )
    parser.add_argument("--config", type=Path, help="a YAML file over the trainer's own configuration")
    parser.add_argument("overrides", nargs="*", help="settings in Hydra's syntax, such as trainer.device=cpu")
    return parser.parse_args(arguments)


def run(asked: argparse.Namespace) -> int:
    """Train; the exit code is 2 if training can't begin as it is configured, 1 if it was stopped."""
    sys.path.insert(0, "")  # rows and agents may be modules of the working directory
    try:
        config = load(asked.overrides, asked.config)
        train(config, *_rows(config))
    except _REFUSED as error:
        problems = getattr(error, "problems", [str(error)])
        sys.stderr.write("".join(f"leyden train: {problem}\n" for problem in problems))
        return 2
    except (TrainingStopped, LogUnavailable, LogThreadTimeout) as error:
        said = getattr(error, "cause", error)  # Ray adds its own to what was raised in its processes
        sys.stderr.write(f"leyden train: {said}\n")
        return 1
    return 0


def _rows(config: DictConfig) -> list[Iterable[Any]]:
    """The rows to train and to validate on.

    Raises:
        SettingsInvalid: some can't be had; names all that is wrong with the configuration as well.
    """
    rows, problems = [], []
    for name in ("train_rows", "val_rows"):
        try:
            rows.append(load_rows(config.data[name], f"data.{name}"))
        except RowsInvalid as error:
            problems.append(str(error))
    if problems:
        try:
            settled(config.copy())
        except SettingsInvalid as refused:
            problems += refused.problems
        raise SettingsInvalid(problems)
    return rows
