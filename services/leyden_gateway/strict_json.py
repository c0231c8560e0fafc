"""JSON as it is read here: no NaN, no infinity, no broken text, and no deeper than what can be written again."""

from __future__ import annotations

from typing import Any

import orjson

MAX_DEPTH = 200
"""orjson writes 254 levels, and an event wraps what it holds in a few of its own."""


class NotJSON(ValueError):
    """The bytes are not JSON that can be kept; the message shows the place."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


def loads(raw: bytes) -> Any:
    """The value of `raw`.

    Raises:
        NotJSON: see there.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise NotJSON(f"{error.msg} near {near!r}", error.pos) from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise NotJSON(f"JSON nested deeper than {MAX_DEPTH} levels near {raw[:40].decode(errors='replace')!r}")
    return value


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(layer)
