"""JSON as it is read here: no NaN, no infinity, no broken text, and no deeper than what can be written again."""

from __future__ import annotations

from typing import Any

import orjson

MAX_DEPTH = 200
"""An event wraps what it holds in a few levels of its own, and must be written too."""

_WRITTEN_DEPTH = 254
"""How many levels orjson writes."""


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
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _too_deep(value):
        raise NotJSON(f"JSON nested deeper than {MAX_DEPTH} levels near {raw[:40].decode(errors='replace')!r}")
    return value


def _too_deep(value: Any) -> bool:
    """Whether it has more than `MAX_DEPTH` levels. Wrapped and written by orjson: a tenth of the time of looking."""
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False
