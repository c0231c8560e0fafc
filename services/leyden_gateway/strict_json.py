"""JSON as it is read here: no NaN, no infinity, no broken text, and no deeper than what can be written again."""

from __future__ import annotations

import threading
from typing import Any

import orjson

MAX_DEPTH = 200
"""An event wraps what it holds in a few levels of its own, and must be written too."""

TOO_DEEP = f"JSON nested deeper than {MAX_DEPTH} levels"

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
    value = loads_at_any_depth(raw)
    if len(raw) > 2 * MAX_DEPTH and too_deep(value):
        raise NotJSON(f"{TOO_DEEP} near {raw[:40].decode(errors='replace')!r}")
    return value


def loads_at_any_depth(raw: bytes) -> Any:
    """The value of `raw`, for who looks at its depth later.

    Raises:
        NotJSON
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise NotJSON(f"{error.msg} near {near!r}", error.pos) from None


class _Wrapping(threading.local):
    """This thread's lists in lists, as many as make a value too deep to be written that has more than `MAX_DEPTH`."""

    def __init__(self) -> None:
        self.outermost: list[Any] = []
        self.innermost = self.outermost
        for _ in range(_WRITTEN_DEPTH - MAX_DEPTH - 1):
            self.innermost.append([])
            self.innermost = self.innermost[0]


_wrapping = _Wrapping()


def too_deep(value: Any) -> bool:
    """Whether it has more than `MAX_DEPTH` levels. Written by orjson: a tenth of the time of looking."""
    _wrapping.innermost.append(value)
    try:
        orjson.dumps(_wrapping.outermost)
    except orjson.JSONEncodeError:
        return True
    finally:
        _wrapping.innermost.clear()
    return False
