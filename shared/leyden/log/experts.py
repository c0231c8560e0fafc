"""The experts that a model's tokens were routed to, as vLLM reports them: an array (tokens, layers, experts) in NumPy's
file form, as base64.

The tokens' rows follow one another, so those of a prompt are shared as its ids are.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

_MAGIC = b"\x93NUMPY\x01\x00"
_HEAD = re.compile(rb"\{'descr': '[^']*', 'fortran_order': False, 'shape': \((\d+),[^)]*\), \} *\n")
_LONG_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Experts:
    """An array's head, which says its shape, and its rows, one a token."""

    head: bytes
    rows: memoryview
    row_bytes: int

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.rows) // self.row_bytes

    def between(self, start: int, stop: int) -> memoryview:
        """The bytes of the rows from one place to another."""
        return self.rows[start * self.row_bytes : stop * self.row_bytes]


def experts_in(value: Any) -> Experts | None:
    """The array in a recorded value; None if that is anything else, or would not be written the same way."""
    if not isinstance(value, str) or len(value) < _LONG_CHARACTERS or not value.isascii():
        return None
    try:
        raw = b64decode(value, validate=True)
    except ValueError:
        return None
    if not raw.startswith(_MAGIC) or b64encode(raw).decode() != value:
        return None
    end = len(_MAGIC) + 2 + int.from_bytes(raw[len(_MAGIC) : len(_MAGIC) + 2], "little")
    shape = _HEAD.fullmatch(raw[len(_MAGIC) + 2 : end])
    count, size = int(shape[1]) if shape else 0, len(raw) - end
    if not count or not size or size % count:
        return None
    return Experts(raw[:end], memoryview(raw)[end:], size // count)


def column(head: bytes, rows: memoryview) -> bytes:
    """The bytes of an array on record, without the rows that are shared."""
    return b"".join((len(head).to_bytes(4, "little"), head, rows))


def restored(own: bytes, shared: memoryview) -> str:
    """The recorded value from the bytes on record and the rows before them."""
    end = 4 + int.from_bytes(own[:4], "little")
    return b64encode(b"".join((own[4:end], shared, own[end:]))).decode()
