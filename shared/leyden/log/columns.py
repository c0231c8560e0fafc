"""Token ids and log probs of an answer as columns of numbers, apart from the JSON around them.

Invariants:
- what comes back is what was there, in type and value: a list of anything but 32-bit integers or finite floats is left
  where it is;
- the data given is never changed, and copied only along the way to a column.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

_BYTES = {"i": 4, "f": 4, "d": 8}
"""What a value of each column type takes."""

_ENTRY = ["token", "logprob", "bytes", "top_logprobs"]
"""The keys of an entry of `logprobs.content`, in the order in which vLLM writes them."""

_FIELDS = itemgetter("token", "logprob", "bytes", "top_logprobs")

_SHORT = 8
"""Columns shorter than this cost more than they save."""

Path = list[str | int]


class Columns:
    """The columns of one payload while it is built."""

    def __init__(self) -> None:
        self.places: list[list[Any]] = []
        """For each column its path, type and length."""
        self.blobs: list[bytes] = []

    def take(self, path: Path, values: Any) -> bool:
        """Move a list of ids or log probs out of the skeleton; False if it is anything else."""
        column = _packed(values)
        if column is None:
            return False
        typecode, packed = column
        self.places.append([path, typecode, len(values)])
        self.blobs.extend(_planes(packed, _BYTES[typecode]))
        return True


def without_columns(response: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """A model's answer as it is but for the columns taken out of it; `response` stays as it was."""
    bare = dict(response)
    if columns.take(["response", "prompt_token_ids"], bare.get("prompt_token_ids")):
        bare["prompt_token_ids"] = None
    choices = bare.get("choices")
    if isinstance(choices, list):
        bare["choices"] = [
            _bare_choice(choice, ["response", "choices", place], columns) if isinstance(choice, dict) else choice
            for place, choice in enumerate(choices)
        ]
    return bare


def _bare_choice(choice: dict[str, Any], path: Path, columns: Columns) -> dict[str, Any]:
    bare = dict(choice)
    for name in ("token_ids", "prompt_token_ids"):
        if columns.take([*path, name], bare.get(name)):
            bare[name] = None
    log_probs = bare.get("logprobs")
    if isinstance(log_probs, dict):
        bare["logprobs"] = log_probs = dict(log_probs)
        if columns.take([*path, "logprobs", "token_logprobs"], log_probs.get("token_logprobs")):
            log_probs["token_logprobs"] = None
        parts = _parts(log_probs.get("content"))
        if parts and columns.take([*path, "logprobs", "content", "*"], parts[1]):
            log_probs["content"] = parts[0]
    return bare


def _parts(content: Any) -> tuple[list[Any], list[Any]] | None:
    """The entries of `logprobs.content` without their log probs, and the log probs; None if it is anything else.

    What is left of an entry is its token, or `[token, bytes, top_logprobs]` if the bytes are not the token's UTF-8 or
    there are other candidates.
    """
    if not isinstance(content, list) or not content:
        return None
    try:
        if list(content[0]) != _ENTRY or set(map(len, content)) != {len(_ENTRY)}:
            return None
        tokens, log_probs, utf8s, tops = map(list, zip(*map(_FIELDS, content), strict=True))
    except (LookupError, TypeError):
        return None
    if _all_derived(tokens, utf8s, tops):
        return tokens, log_probs
    entries = zip(tokens, utf8s, tops, strict=True)
    return [
        token if _all_derived([token], [utf8], [top]) else [token, utf8, top] for token, utf8, top in entries
    ], log_probs


def _all_derived(tokens: list[Any], utf8s: list[Any], tops: list[Any]) -> bool:
    """Whether all bytes are their tokens' UTF-8, and no token has other candidates."""
    if set(map(type, tokens)) != {str} or set(map(type, utf8s)) != {list} or any(top != [] for top in tops):
        return False
    try:
        texts = list(map(str.encode, tokens))
        if list(map(bytes, utf8s)) != texts:
            return False
    except (UnicodeEncodeError, TypeError, ValueError):
        return False
    # true and false equal 1 and 0, so tokens with those bytes are kept as they came.
    together = b"".join(texts)
    return b"\0" not in together and b"\1" not in together


def put_back(skeleton: dict[str, Any], places: list[list[Any]], blobs: bytes) -> int:
    """Put columns back into the skeleton that they were taken out of; returns how many bytes they took.

    Raises:
        ValueError, LookupError, TypeError, struct.error: the places are not this skeleton's, or bytes are missing.
    """
    start = 0
    for path, typecode, length in places:
        end = start + length * _BYTES[typecode]
        _put(skeleton, path, _unpacked(typecode, length, blobs[start:end]))
        start = end
    return start


def _whole_entry(bare: Any, log_prob: float) -> dict[str, Any]:
    token, utf8, top = bare if isinstance(bare, list) else (bare, list(bare.encode()), [])
    return {"token": token, "logprob": log_prob, "bytes": utf8, "top_logprobs": top}


def _put(skeleton: Any, path: Path, values: list[Any]) -> None:
    if path[-1] == "*":
        *way, last = path[:-1]
        values = [_whole_entry(bare, log_prob) for bare, log_prob in zip(_at(skeleton, way)[last], values, strict=True)]
    else:
        *way, last = path
    _at(skeleton, way)[last] = values


def _at(skeleton: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        skeleton = skeleton[step]
    return skeleton


def _packed(values: Any) -> tuple[str, bytes] | None:
    """The type and bytes of a column, or None if `values` is no list of 32-bit integers or of floats."""
    if not isinstance(values, list) or len(values) < _SHORT:
        return None
    # struct takes true for 1 and 1 for 1.0, which would not come back as they were.
    types = set(map(type, values))
    try:
        if types == {int}:
            return "i", struct.pack(f"<{len(values)}i", *values)
        if types == {float} and all(map(math.isfinite, values)):
            return _packed_floats(values)
    except struct.error:
        pass
    return None


def _packed_floats(values: list[float]) -> tuple[str, bytes]:
    layout = f"<{len(values)}f"
    try:
        short = struct.pack(layout, *values)
        if list(struct.unpack(layout, short)) == values:
            return "f", short
    except OverflowError:
        pass
    return "d", struct.pack(f"<{len(values)}d", *values)


def _planes(packed: bytes, width: int) -> list[bytes]:
    return [packed[place::width] for place in range(width)]


def _unpacked(typecode: str, length: int, planes: bytes) -> list[Any]:
    width = _BYTES[typecode]
    packed = bytearray(len(planes))
    for place in range(width):
        packed[place::width] = planes[place * length : (place + 1) * length]
    return list(struct.unpack(f"<{length}{typecode}", packed))
