"""Where rows come from when training is started from the command line."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class RowsInvalid(ValueError):
    """Rows can't be had from where the configuration says; the message names the place."""


def load_rows(source: str | None, setting: str) -> Iterable[Any]:
    """The rows that `source` names: a JSONL file, or `pkg.module:function`, which returns them.

    Raises:
        RowsInvalid
    """
    if not source:
        raise RowsInvalid(f"{setting} is not set: give a JSONL file, or pkg.module:function that returns rows")
    if _FUNCTION.fullmatch(source) and not Path(source).exists():
        return _called(source, setting)
    return _read(Path(source), setting)


def _read(path: Path, setting: str) -> list[Any]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RowsInvalid(f"{setting}: {path} can't be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise RowsInvalid(f"{setting}: {path}, line {number}: {error}") from error
    return rows


def _called(source: str, setting: str) -> Iterable[Any]:
    module, name = source.split(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RowsInvalid(f"{setting}: {source} can't be imported: {error}") from error
    return function()
