from pathlib import Path

import pytest
from omegaconf import OmegaConf

from leyden_trainer.resume import TRACKER, CheckpointInvalid, CheckpointState, find_resume

STATE = CheckpointState(run="r", step=4, drawn=8, branches=("b2", "b1"), completions=17)


def trainer(root: Path, **settings):
    defaults = {"resume_mode": "auto", "default_local_dir": str(root), "resume_from_path": None}
    return OmegaConf.create(defaults | settings)


def checkpoint(root: Path, step: int, state: CheckpointState | None = None) -> Path:
    folder = root / f"global_step_{step}"
    folder.mkdir(parents=True)
    (folder / "data.pt").touch()
    if state is not None:
        state.write(folder)
    return folder


def test_without_a_tracker_training_begins(tmp_path: Path):
    checkpoint(tmp_path, 4, STATE)

    assert find_resume(trainer(tmp_path), "r").step == 0


def test_the_tracker_says_where_to_go_on(tmp_path: Path):
    checkpoint(tmp_path, 2)
    folder = checkpoint(tmp_path, 4, STATE)
    (tmp_path / TRACKER).write_text("4")

    resume = find_resume(trainer(tmp_path), "r")

    assert (resume.step, resume.folder, resume.state) == (4, folder, STATE)


def test_a_checkpoint_without_leydens_part_is_gone_on_from(tmp_path: Path):
    checkpoint(tmp_path, 2)
    (tmp_path / TRACKER).write_text("2")

    assert find_resume(trainer(tmp_path), "r").state is None


@pytest.mark.parametrize("torn", ["", "\n", "4x"])
def test_a_torn_tracker_says_which_checkpoint_is_complete(tmp_path: Path, torn: str):
    checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 10)
    (tmp_path / "global_step_12").mkdir()  # cut short before its last file
    (tmp_path / TRACKER).write_text(torn)

    with pytest.raises(CheckpointInvalid, match=r"not a step: the trainer died writing it; write 10, the newest"):
        find_resume(trainer(tmp_path), "r")


def test_an_empty_tracker_without_any_checkpoint_is_to_be_removed(tmp_path: Path):
    (tmp_path / TRACKER).touch()

    with pytest.raises(CheckpointInvalid, match="remove it to begin anew"):
        find_resume(trainer(tmp_path), "r")


def test_a_tracker_that_names_a_missing_checkpoint_does_not_begin_anew(tmp_path: Path):
    checkpoint(tmp_path, 2)
    (tmp_path / TRACKER).write_text("6")

    with pytest.raises(CheckpointInvalid, match=r"names step 6, but there is no .*; write 2"):
        find_resume(trainer(tmp_path), "r")


def test_a_path_of_the_users_own_is_gone_on_from(tmp_path: Path):
    folder = checkpoint(tmp_path, 4, STATE)

    assert find_resume(trainer(tmp_path, resume_mode="resume_path", resume_from_path=str(folder)), "other").step == 4


def test_a_path_that_is_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointInvalid, match="is not the folder of a checkpoint"):
        find_resume(trainer(tmp_path, resume_mode="resume_path", resume_from_path=str(tmp_path / "actor")), "r")


def test_a_renamed_checkpoint_is_refused(tmp_path: Path):
    checkpoint(tmp_path, 4, STATE).rename(tmp_path / "global_step_9")
    (tmp_path / TRACKER).write_text("9")

    with pytest.raises(CheckpointInvalid, match="is of step 4; the folder was renamed"):
        find_resume(trainer(tmp_path), "r")


def test_a_broken_state_is_named(tmp_path: Path):
    (checkpoint(tmp_path, 4) / "leyden.json").write_text('{"run": "r"')
    (tmp_path / TRACKER).write_text("4")

    with pytest.raises(CheckpointInvalid, match=r"leyden\.json can't be read"):
        find_resume(trainer(tmp_path), "r")


def test_nothing_is_gone_on_from_when_it_is_switched_off(tmp_path: Path):
    (tmp_path / TRACKER).touch()

    assert find_resume(trainer(tmp_path, resume_mode="disable"), "r").step == 0


def test_another_runs_checkpoints_are_not_gone_on_from_unasked(tmp_path: Path):
    folder = checkpoint(tmp_path, 4, STATE)
    (tmp_path / TRACKER).write_text("4")

    with pytest.raises(CheckpointInvalid, match=r"holds the checkpoints of run 'r', and this is run 'other'"):
        find_resume(trainer(tmp_path), "other")

    asked = trainer(tmp_path, resume_mode="resume_path", resume_from_path=str(folder))
    assert find_resume(asked, "other").state == STATE
