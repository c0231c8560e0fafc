"""`python -m leyden_trainer [--config FILE] [section.setting=value …]`: train on the rows that are configured."""

import argparse
import sys
from pathlib import Path

from leyden.log.errors import LogAddressInvalid
from leyden_trainer.config import load
from leyden_trainer.dataset import RowInvalid
from leyden_trainer.entrypoint import LogUnknown, train
from leyden_trainer.resume import CheckpointInvalid
from leyden_trainer.row_sources import RowsInvalid, load_rows
from leyden_trainer.settings import SettingsInvalid
from leyden_trainer.task_runner import TrainingStopped

_REFUSED = (SettingsInvalid, RowsInvalid, RowInvalid, CheckpointInvalid, LogUnknown, LogAddressInvalid)


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit code is 2 if training can't begin as it is configured, 1 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m leyden_trainer", description=__doc__)
    parser.add_argument("--config", type=Path, help="a YAML file over the trainer's own configuration")
    parser.add_argument("overrides", nargs="*", help="settings in Hydra's syntax, such as trainer.device=cpu")
    asked = parser.parse_args(arguments)
    sys.path.insert(0, "")  # rows and agents may be modules of the working directory
    try:
        config = load(asked.overrides, asked.config)
        train(
            config,
            load_rows(config.data.train_rows, "data.train_rows"),
            load_rows(config.data.val_rows, "data.val_rows"),
        )
    except _REFUSED as error:
        problems = getattr(error, "problems", [str(error)])
        sys.stderr.write("".join(f"leyden train: {problem}\n" for problem in problems))
        return 2
    except TrainingStopped as error:
        said = getattr(error, "cause", error)  # Ray adds its own to what was raised in its processes
        sys.stderr.write(f"leyden train: {said}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
