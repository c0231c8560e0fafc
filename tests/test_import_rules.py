"""Who may import whom, as docs/architecture.md has it, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "leyden": ROOT / "shared/leyden",
    "leyden_gateway": ROOT / "services/leyden_gateway",
    "leyden_controller": ROOT / "services/leyden_controller",
    "leyden_trainer": ROOT / "trainer/leyden_trainer",
}

MAY_IMPORT = {
    "leyden": set(),
    "leyden_gateway": {"leyden"},
    "leyden_controller": {"leyden"},
    "leyden_trainer": {"leyden"},
}

HEAVY = {"torch", "ray", "verl"}
"""What only the trainer may import."""


def imported_names(source: str) -> Iterator[str]:
    """The full names of the modules that a source imports, wherever in it, by statement or by a call with a literal."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def imports_of(package: str) -> dict[str, set[str]]:
    """The top-level packages that each file of a package imports."""
    return {
        str(file.relative_to(ROOT)): {name.partition(".")[0] for name in imported_names(file.read_text())}
        for file in sorted(PACKAGES[package].rglob("*.py"))
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_meet_only_through_the_log_and_the_api(package):
    others = PACKAGES.keys() - {package} - MAY_IMPORT[package]

    assert {file: names & others for file, names in imports_of(package).items() if names & others} == {}


@pytest.mark.parametrize("package", PACKAGES.keys() - {"leyden_trainer"})
def test_only_the_trainer_imports_what_is_heavy(package):
    assert {file: names & HEAVY for file, names in imports_of(package).items() if names & HEAVY} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_there_to_be_looked_at(package):
    assert len(imports_of(package)) > 5


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b, c as d", ["a.b", "c"]),
        ("from a.b import c", ["a.b"]),
        ("from . import c", []),
        ("def f():\n    if True:\n        import a", ["a"]),
        ("import importlib\nimportlib.import_module('a.b')", ["importlib", "a.b"]),
        ("__import__('a')", ["a"]),
    ],
)
def test_imports_are_seen_wherever_they_stand(source, names):
    assert list(imported_names(source)) == names
