"""Columns and shared parts, put back into the event that they were taken out of."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from leyden.log.columns import BYTES, Path
from leyden.log.experts import experts_in, restored

Call = Mapping[str, Any]
"""The data of a call's event."""


def put_back(event: dict[str, Any], places: list[list[Any]], blobs: bytes, bases: Sequence[Call]) -> int:
    """Put back what was taken out of an event; returns how many bytes it took. `bases` are the calls referred to.

    The event holds what it shares with an earlier call, not a copy.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, struct.error: the places are not this event's, or bytes or
            elements are missing.
    """
    start = 0
    for path, typecode, length, *shared in places:
        if typecode in BYTES:
            end = start + length * BYTES[typecode]
            own: Any = _numbers(typecode, length, blobs[start:end])
        elif typecode == "t":
            own, end = _texts(length, blobs, start)
        elif typecode == "e":
            end = start + length
            own = blobs[start:end]
        else:
            own, end = _at(event, path), start
        if shared:
            base, count = shared
            own = _continued(typecode, path, own, bases[base], count)
        elif typecode == "e":
            own = restored(own, memoryview(b""))
        _put(event, path, own)
        start = end
    return start


def ids_of(call: Call) -> tuple[list[Any], list[Any]]:
    """The ids of a call's prompt and of its first choice: together what a later prompt may begin with.

    Part of the format: what references to token ids count in. Empty where there are none.
    """
    response = call.get("response")
    if not isinstance(response, dict):
        return [], []
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    prompt = _list(response.get("prompt_token_ids")) or _list(first.get("prompt_token_ids"))
    return prompt, _list(first.get("token_ids"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _continued(typecode: str, path: Path, own: Any, base: Call, count: int) -> Any:
    """The first `count` elements of an earlier call's part, and what the call itself adds."""
    if typecode == "i":
        prompt, sampled = ids_of(base)
        first = prompt[:count]
        if count > len(prompt):
            first += sampled[: count - len(prompt)]
        return _after(first, count, own)
    part = _at(base, path)
    if typecode == "l":
        return _after(part[:count], count, own)
    if typecode == "s":
        return _after(part.encode()[:count], count, own.encode()).decode()
    if typecode == "v":
        return part
    if typecode == "e":
        experts = experts_in(part)
        if experts is None or experts.count < count:
            raise ValueError(f"an earlier call should have the experts of {count} tokens, and does not")
        return restored(own, experts.between(0, count))
    raise ValueError(f"a part of type {typecode!r} can't be shared")


def _after(first: Any, count: int, own: Any) -> Any:
    if len(first) != count:
        raise ValueError(f"an earlier call should have {count} elements, and has {len(first)}")
    first += own
    return first


def _put(event: Any, path: Path, values: Any) -> None:
    if path[-1] == "*" and path[0] == "response":  # elsewhere it is the name of a parameter
        *way, last = path[:-1]
        values = [_whole_entry(bare, log_prob) for bare, log_prob in zip(_at(event, way)[last], values, strict=True)]
    else:
        *way, last = path
    _at(event, way)[last] = values


def _whole_entry(bare: Any, log_prob: float) -> dict[str, Any]:
    token, utf8, top = bare if isinstance(bare, list) else (bare, list(bare.encode()), [])
    return {"token": token, "logprob": log_prob, "bytes": utf8, "top_logprobs": top}


def _at(event: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        event = event[step]
    return event


def _numbers(typecode: str, length: int, planes: bytes) -> list[Any]:
    width = BYTES[typecode]
    packed = bytearray(len(planes))
    for place in range(width):
        packed[place::width] = planes[place * length : (place + 1) * length]
    return list(struct.unpack(f"<{length}{typecode}", packed))


def _texts(length: int, blobs: bytes, start: int) -> tuple[list[str], int]:
    """Texts whose lengths in bytes, one byte each, stand before them; and where they end."""
    ends = list(accumulate(blobs[start : start + length], initial=start + length))
    texts = [blobs[begin:end].decode() for begin, end in pairwise(ends)]
    if len(texts) != length or ends[-1] > len(blobs):
        raise ValueError(f"{length} texts should be there, and are not")
    return texts, ends[-1]
