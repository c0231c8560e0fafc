"""Rows of a user's own: any JSON values, each the input of the rollouts that run on it."""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

DATA_SOURCE = "rollouts"
"""What a row counts under that names no `data_source` of its own."""


class RowInvalid(ValueError):
    """A row is not JSON."""


class Rows(Sequence[Any]):
    """A sequence of JSON values, kept as JSON, so that it travels and compares as it was given."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._encoded = [_encode(index, row) for index, row in enumerate(rows)]

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, index: Any) -> Any:
        return orjson.loads(self._encoded[index])

    @property
    def encoded(self) -> list[bytes]:
        """Every row as JSON with sorted keys."""
        return self._encoded


def data_source_of(row: Any) -> str:
    """The group of validation metrics that a row belongs to."""
    source = row.get("data_source") if isinstance(row, dict) else None
    return source if isinstance(source, str) else DATA_SOURCE


def _encode(index: int, row: Any) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise RowInvalid(f"row {index} is not JSON: {error}") from error
