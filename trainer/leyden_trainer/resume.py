"""Where training goes on: the checkpoint that verl will load, and what Leyden keeps beside it.

Invariants:
- a checkpoint is committed when verl's tracker file names it; Leyden's part is in its folder before that;
- a tracker that can't be followed is an error: beginning anew silently would train twice on the same prompts.
"""

import os
from pathlib import Path
from typing import Self

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, ValidationError

TRACKER = "latest_checkpointed_iteration.txt"
STATE_FILE = "leyden.json"


class CheckpointInvalid(RuntimeError):
    """The checkpoints can't tell where to go on; the message says what to do."""


class CheckpointState(BaseModel):
    """What Leyden needs to go on from a checkpoint.

    `drawn` counts the prompts drawn from the data loader, `branches` is the branch with those it went on from, newest
    first, and `completions` the ordinal of the last completion that was read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = 1
    run: str
    step: int
    drawn: int
    branches: tuple[str, ...]
    completions: int = 0

    def write(self, folder: Path) -> None:
        """Put it into a checkpoint's folder, durably, before the checkpoint is committed."""
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{STATE_FILE}.writing"
        with temporary.open("w") as file:
            file.write(self.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / STATE_FILE)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of a checkpoint; None for one that was written without Leyden."""
        file = folder / STATE_FILE
        if not file.exists():
            return None
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise CheckpointInvalid(f"{file} can't be read: {error}") from error


class Resume(BaseModel):
    """The checkpoint to go on from; step 0 and no folder for a beginning."""

    model_config = ConfigDict(frozen=True)

    step: int = 0
    folder: Path | None = None
    state: CheckpointState | None = None


def find_resume(trainer: DictConfig, run: str) -> Resume:
    """Read verl's `trainer.resume_mode` as verl does, for this run.

    Raises:
        CheckpointInvalid: the tracker is empty, broken, or names a checkpoint that is not there or is another run's.
    """
    match trainer.resume_mode:
        case "disable":
            return Resume()
        case "resume_path":
            return _resume_from(Path(str(trainer.resume_from_path)).absolute())
        case _:
            return _of_run(run, _latest(Path(trainer.default_local_dir).absolute()))


def _of_run(run: str, resume: Resume) -> Resume:
    if resume.folder is not None and resume.state is not None and resume.state.run != run:
        raise CheckpointInvalid(
            f"{resume.folder.parent} holds the checkpoints of run {resume.state.run!r}, and this is run {run!r}: set "
            "another trainer.experiment_name or trainer.default_local_dir; to begin with the weights of that run, set "
            f"trainer.resume_mode=resume_path and trainer.resume_from_path={resume.folder}"
        )
    return resume


def _latest(root: Path) -> Resume:
    tracker = root / TRACKER
    if not tracker.exists():
        return Resume()
    named = tracker.read_text().strip()
    complete = sorted(_complete(root))
    advice = f"write {complete[-1]}, the newest complete checkpoint, into it" if complete else "remove it to begin anew"
    if not named.isdecimal():
        raise CheckpointInvalid(f"{tracker} holds {named!r}, not a step: the trainer died writing it; {advice}")
    folder = root / f"global_step_{named}"
    if not folder.is_dir():
        raise CheckpointInvalid(f"{tracker} names step {named}, but there is no {folder}; {advice}")
    return _resume_from(folder)


def _complete(root: Path) -> list[int]:
    """The steps whose checkpoints hold everything: verl writes the data loader's state last."""
    folders = [data.parent for data in root.glob("global_step_*/data.pt")]
    return [int(step) for folder in folders if (step := folder.name.removeprefix("global_step_")).isdecimal()]


def _resume_from(folder: Path) -> Resume:
    step = folder.name.removeprefix("global_step_")
    if not (step.isdecimal() and folder.is_dir()):
        raise CheckpointInvalid(f"{folder} is not the folder of a checkpoint, which is named global_step_N")
    state = CheckpointState.read(folder)
    if state is not None and state.step != int(step):
        raise CheckpointInvalid(f"{folder / STATE_FILE} is of step {state.step}; the folder was renamed")
    return Resume(step=int(step), folder=folder, state=state)
