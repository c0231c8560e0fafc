"""Rows of a user's own, as verl's data loader wants them.

Invariants:
- a row is any JSON value; it stays what it is, since it becomes the input of rollouts;
- verl's loader carries a row's index, not the row, so nothing in verl has to understand it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

DATA_SOURCE = "rollouts"
"""verl groups validation metrics by data source; a row may name its own under `data_source`."""


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


class LoaderRows:
    """What verl's data loader reads of `rows`: a map-style dataset of one dict a row.

    `raw_prompt` stands in for the prompt that verl counts rows by; the agent decides what is asked.
    """

    def __init__(self, rows: Rows, max_samples: int = -1) -> None:
        self._rows = rows
        self._length = len(rows) if max_samples < 0 else min(len(rows), max_samples)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        source = row.get("data_source") if isinstance(row, dict) else None
        return {"raw_prompt": "", "index": index, "data_source": source if isinstance(source, str) else DATA_SOURCE}


def _encode(index: int, row: Any) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise RowInvalid(f"row {index} is not JSON: {error}") from error
