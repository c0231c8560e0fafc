"""Hooks are one class in one file, Leyden's or Agent Lightning's."""

from __future__ import annotations

from pathlib import Path

import pytest

from leyden.hooks import HooksInvalid, RolloutHooks, load_hooks
from leyden.schemas import NewRollout


def write(folder: Path, text: str) -> Path:
    file = folder / "my_hooks.py"
    file.write_text(text)
    return file


def test_the_one_class_of_a_file_is_created(tmp_path: Path):
    hooks = load_hooks(
        write(
            tmp_path,
            """
from __future__ import annotations
from dataclasses import dataclass, field
from leyden.hooks import RolloutHooks

@dataclass
class Mine(RolloutHooks):
    seen: list[str] = field(default_factory=list)

    def on_enqueue(self, request):
        self.seen.append(request.rollout_id)
        return request
""",
        )
    )
    request = NewRollout(input=1, rollout_id="a")
    assert hooks.on_enqueue(request) is request
    assert vars(hooks)["seen"] == ["a"]
    assert isinstance(hooks, RolloutHooks)


def test_a_file_written_for_agent_lightning_works_as_it_is(tmp_path: Path):
    hooks = load_hooks(
        write(
            tmp_path,
            """
from agentlightning.hooks import RolloutHooks, TraceWriter
from agentlightning.schemas import Event, Rollout, RolloutCreate, RolloutState

class Mine(RolloutHooks):
    def on_enqueue(self, request: RolloutCreate) -> RolloutCreate:
        return request.model_copy(update={"is_train": False})
""",
        )
    )
    assert hooks.on_enqueue(NewRollout(input=1)).is_train is False


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from leyden.hooks import RolloutHooks", "none"),
        ("from leyden.hooks import *\nclass A(RolloutHooks): pass\nclass B(RolloutHooks): pass", "A, B"),
        ("class A: pass", "none"),
    ],
)
def test_a_file_with_none_or_several_is_refused_by_their_names(tmp_path: Path, text: str, found: str):
    with pytest.raises(HooksInvalid, match=f"exactly one subclass of RolloutHooks, found: {found}"):
        load_hooks(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(HooksInvalid, match=r"nowhere\.py does not exist"):
        load_hooks(tmp_path / "nowhere.py")
    with pytest.raises(HooksInvalid, match="not a Python file"):
        load_hooks(tmp_path)


def test_an_error_in_the_file_is_the_file_s_own(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        load_hooks(write(tmp_path, "1 / 0"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load_hooks(write(tmp_path, "import no_such_module"))


def test_hooks_that_override_nothing_change_nothing():
    hooks, request = RolloutHooks(), NewRollout(input=1)
    hooks.on_startup()
    assert hooks.on_enqueue(request) is request
