"""What stops training before it begins, and what a person sees of it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leyden_trainer.command_line import parse, run
from leyden_trainer.config import load
from leyden_trainer.entrypoint import train
from leyden_trainer.settings import SettingsInvalid

ENOUGH = ["trainer.device=cpu", "trainer.save_freq=2", "actor_rollout_ref.model.path=model", "trainer.logger=[console]"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_REDIS_URL", "redis://:a-secret@127.0.0.1:1/0")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(parse([*ENOUGH, *arguments])) == 2
    return capsys.readouterr().err


def test_without_rows_it_says_how_to_give_them(capsys):
    assert "leyden train: data.train_rows is not set: give a JSONL file" in said(capsys)


def test_every_wrong_setting_has_a_line(capsys, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("1\n")
    rows = ["data.train_rows=rows.jsonl", "data.val_rows=rows.jsonl"]

    lines = said(capsys, *rows, "trainer.save_freq=-1", "trainer.use_v1=false").splitlines()

    assert [line.split()[2] for line in lines] == ["trainer.save_freq", "trainer.use_v1"]


def test_what_is_wrong_with_rows_and_with_settings_is_said_at_once(capsys, monkeypatch, tmp_path: Path):
    monkeypatch.delenv("LEYDEN_REDIS_URL")
    (tmp_path / "rows.jsonl").write_text("1\n{")
    rows = ["data.train_rows=rows.jsonl", "data.val_rows=none.jsonl"]

    lines = said(capsys, *rows, "trainer.save_freq=-1", "actor_rollout_ref.model.path=/no/model").splitlines()

    assert [line.removeprefix("leyden train: ").split()[0] for line in lines] == [
        "data.train_rows:",
        "data.val_rows:",
        "set",
        "trainer.save_freq",
        "actor_rollout_ref.model.path",
    ]


def test_a_log_that_does_not_answer_is_said_before_ray_starts(capsys, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("1\n")
    rows = ["data.train_rows=rows.jsonl", "data.val_rows=rows.jsonl"]

    assert run(parse([*ENOUGH, *rows, "trainer.n_gpus_per_node=1"])) == 1

    said = capsys.readouterr().err
    assert said.startswith("leyden train: Redis is not available")
    assert "a-secret" not in said


def test_no_rows_at_all_is_an_error(capsys, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("")

    assert "there are no train rows" in said(capsys, "data.train_rows=rows.jsonl", "data.val_rows=rows.jsonl")


def test_a_torn_tracker_is_named_before_anything_starts(capsys, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("1\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").touch()
    rows = ["data.train_rows=rows.jsonl", "data.val_rows=rows.jsonl"]

    assert "the trainer died writing it" in said(capsys, *rows, "trainer.default_local_dir=checkpoints")


def test_without_a_log_it_says_where_to_name_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LEYDEN_REDIS_URL")

    with pytest.raises(SettingsInvalid, match="set LEYDEN_REDIS_URL"):
        train(load(ENOUGH), [1], [1])


def test_the_given_configuration_stays_as_it_is():
    config = load(ENOUGH)
    before = config.copy()

    with pytest.raises(SettingsInvalid, match="there are no val rows"):
        train(config, [1], [])

    assert config == before


_SLOW_ROWS = """
import time

def rows():
    print("reading", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_trainer_says_in_a_line_how_to_go_on(tmp_path: Path, number: signal.Signals, code: int):
    (tmp_path / "slow.py").write_text(_SLOW_ROWS)
    command = [sys.executable, "-m", "leyden_trainer", *ENOUGH, "data.train_rows=slow:rows"]

    def heed_signals() -> None:
        # What is started in the background of a shell ignores Ctrl-C, and so does all that it starts.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals
    ) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "reading\n"
            trainer.send_signal(number)
            _, said = trainer.communicate(timeout=30)
        finally:
            trainer.kill()

    assert trainer.returncode == code
    assert said == "leyden train: interrupted; the same command goes on from the last checkpoint\n"
