"""A model's folder exists only when it is complete."""

from pathlib import Path

import pytest
from examples.models.folder import make_once


def test_a_folder_that_could_not_be_filled_is_not_there_and_leaves_nothing(tmp_path):
    def fill(partial: Path) -> None:
        (partial / "half").write_text("x")
        raise ConnectionError("registry went away")

    with pytest.raises(ConnectionError):
        make_once(tmp_path / "model", fill)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_make_it_at_once_one_wins_and_both_go_on(tmp_path):
    folder = tmp_path / "model"

    def fill(partial: Path) -> None:
        (partial / "who").write_text("second")
        folder.mkdir()
        (folder / "who").write_text("first")

    assert make_once(folder, fill) is False
    assert (folder / "who").read_text() == "first"
    assert list(tmp_path.iterdir()) == [folder]
