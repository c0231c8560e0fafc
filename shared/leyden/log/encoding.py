"""Event payloads as bytes: compact, versioned, and read back exactly.

A payload is one version byte and a zstd frame. In the frame stand the length of a JSON skeleton (uint32), the skeleton,
and the columns taken out of it: token ids as int32, log probs as float32 if every value survives that, else as
float64. All numbers are little-endian.

Invariants:
- decode(encode(data)) == data for any JSON object whose integers fit 64 bits;
- what does not look like ids or log probs stays in the skeleton, however odd it is;
- a payload of a newer version is refused by that version's number.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import orjson
import zstandard

VERSION = 1

_LEVEL = 1
_MAX_PAYLOAD_BYTES = 1 << 31
_ENTRY_KEYS = frozenset(("token", "logprob", "bytes", "top_logprobs"))

Path = list[str | int]


class PayloadRefused(ValueError):
    """The bytes are not a payload that this version of Leyden can read."""


class _Columns:
    """The columns of one payload while it is built."""

    def __init__(self) -> None:
        self.places: list[tuple[Path, str, int]] = []
        self.blobs: list[bytes] = []

    def take(self, path: Path, values: Any) -> bool:
        """Move a list of ids or log probs out of the skeleton; False if it is anything else."""
        column = _packed(values)
        if column is None:
            return False
        self.places.append((path, column.typecode, len(column)))
        self.blobs.append(_little_endian(column).tobytes())
        return True


def encode(data: dict[str, Any]) -> bytes:
    """The payload of an event's data.

    Raises:
        TypeError: a value is not JSON, or an integer needs more than 64 bits.
    """
    columns = _Columns()
    response = data.get("response")
    skeleton = data if not isinstance(response, dict) else {**data, "response": _without_columns(response, columns)}
    head = orjson.dumps([skeleton, columns.places] if columns.places else [skeleton])
    frame = b"".join((len(head).to_bytes(4, "little"), head, *columns.blobs))
    return bytes((VERSION,)) + zstandard.ZstdCompressor(level=_LEVEL).compress(frame)


def decode(payload: bytes) -> dict[str, Any]:
    """The data of a payload.

    Raises:
        PayloadRefused: the payload is of a newer version, or is damaged.
    """
    if not payload:
        raise PayloadRefused("an empty payload is not an event")
    if payload[0] != VERSION:
        raise PayloadRefused(f"payload version {payload[0]} is not known here (up to {VERSION}); upgrade this process")
    try:
        frame = zstandard.ZstdDecompressor().decompress(payload[1:], max_output_size=_MAX_PAYLOAD_BYTES)
        start = 4 + int.from_bytes(frame[:4], "little")
        skeleton, *rest = orjson.loads(frame[4:start])
        for path, typecode, length in rest[0] if rest else ():
            column = array(typecode)
            end = start + length * column.itemsize
            column.frombytes(frame[start:end])
            _put(skeleton, path, _little_endian(column).tolist())
            start = end
    except (zstandard.ZstdError, orjson.JSONDecodeError, ValueError, LookupError, TypeError) as error:
        raise PayloadRefused(f"damaged payload of {len(payload)} bytes: {error}") from error
    return skeleton


def _without_columns(response: dict[str, Any], columns: _Columns) -> dict[str, Any]:
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


def _bare_choice(choice: dict[str, Any], path: Path, columns: _Columns) -> dict[str, Any]:
    bare = dict(choice)
    for name in ("token_ids", "prompt_token_ids"):
        if columns.take([*path, name], bare.get(name)):
            bare[name] = None
    log_probs = bare.get("logprobs")
    if isinstance(log_probs, dict):
        bare["logprobs"] = log_probs = dict(log_probs)
        if columns.take([*path, "logprobs", "token_logprobs"], log_probs.get("token_logprobs")):
            log_probs["token_logprobs"] = None
        content = log_probs.get("content")
        if isinstance(content, list) and _all_entries(content):
            chosen = [entry["logprob"] for entry in content]
            if columns.take([*path, "logprobs", "content", "*"], chosen):
                log_probs["content"] = [_bare_entry(entry) for entry in content]
    return bare


def _all_entries(content: list[Any]) -> bool:
    return all(isinstance(entry, dict) and entry.keys() == _ENTRY_KEYS for entry in content)


def _bare_entry(entry: dict[str, Any]) -> list[Any]:
    """[token], [token, top_logprobs] or [token, top_logprobs, bytes]: what can't be derived from what stands before."""
    token, utf8, top = entry["token"], entry["bytes"], entry["top_logprobs"]
    derived = isinstance(token, str) and isinstance(utf8, list) and _is_utf8_of(utf8, token)
    if derived:
        return [token] if top == [] else [token, top]
    return [token, top, utf8]


def _is_utf8_of(utf8: list[Any], token: str) -> bool:
    try:
        return utf8 == list(token.encode()) and all(type(byte) is int for byte in utf8)
    except UnicodeEncodeError:
        return False


def _whole_entry(bare: list[Any], log_prob: float) -> dict[str, Any]:
    token = bare[0]
    utf8 = bare[2] if len(bare) == 3 else list(token.encode())
    return {"token": token, "logprob": log_prob, "bytes": utf8, "top_logprobs": bare[1] if len(bare) > 1 else []}


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


def _packed(values: Any) -> array | None:
    if not isinstance(values, list) or not values:
        return None
    types = set(map(type, values))
    if types == {int}:
        try:
            return array("i", values)
        except OverflowError:
            return None
    if types == {float}:
        exact = array("d", values)
        try:
            short = array("f", values)
        except OverflowError:
            return exact
        return short if array("d", short) == exact else exact
    return None


def _little_endian(column: array) -> array:
    if sys.byteorder == "big":
        column.byteswap()
    return column
