"""Event payloads as bytes: compact, versioned, and read back exactly.

A payload is one version byte and a zstd frame. In the frame stand one byte for the skeleton's notation, its length
(uint32), the JSON skeleton, and the columns taken out of it: token ids as int32, log probs as float32 if every value
survives that, else as float64, each column by byte planes, which compress better. All numbers are little-endian.

Invariants:
- decode(encode(data)) == data for any JSON object, and what is not JSON is refused by its place and value: encoding
  reads back what it wrote before it returns;
- what does not look like ids or log probs stays in the skeleton, however odd it is;
- a payload of a newer version is refused by that version's number.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import orjson
import zstandard

VERSION = 1

_LEVEL = 1
_MAX_FRAME_BYTES = 1 << 30
"""What a payload may take uncompressed."""

_MAX_PAYLOAD_BYTES = 1 << 28
"""What it may take in Redis, which breaks the connection over a value of more than 512 MiB."""

_FAST, _ANY = 0, 1
"""How the skeleton is written: by orjson, or by json, which also knows integers of any size and lone surrogates."""

_HEAD = struct.Struct("<BI")
_BYTES = {"i": 4, "f": 4, "d": 8}
"""What a value of each column type takes."""

_ENTRY = ["token", "logprob", "bytes", "top_logprobs"]
"""The keys of an entry of `logprobs.content`, in the order in which vLLM writes them."""

_FIELDS = itemgetter("token", "logprob", "bytes", "top_logprobs")

_SHORT = 8
"""Columns shorter than this cost more than they save."""

Path = list[str | int]


class PayloadRefused(ValueError):
    """The bytes are not a payload that this version of Leyden can read."""


class PayloadInvalid(ValueError):
    """The data can't be recorded: something in it is not JSON, or it is too large. The message names the place."""


class _Zstd(threading.local):
    """This thread's compressor and decompressor: they can't be shared, and cost time to make."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


class _Columns:
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


def encode(data: dict[str, Any]) -> bytes:
    """The payload of an event's data.

    Raises:
        PayloadInvalid: a value is not JSON, a number is not finite, or it takes more than 1 GiB, or 256 MiB compressed.
    """
    columns = _Columns()
    response = data.get("response")
    skeleton = data if not isinstance(response, dict) else {**data, "response": _without_columns(response, columns)}
    notation, head = _written([skeleton, columns.places] if columns.places else [skeleton])
    frame = b"".join((_HEAD.pack(notation, len(head)), head, *columns.blobs))
    if len(frame) > _MAX_FRAME_BYTES:
        raise PayloadInvalid(f"an event of {len(frame)} bytes is too large: at most {_MAX_FRAME_BYTES} can be recorded")
    payload = bytes((VERSION,)) + _zstd.compress(frame)
    if len(payload) > _MAX_PAYLOAD_BYTES:
        raise PayloadInvalid(
            f"an event of {len(payload)} bytes compressed is too large: at most {_MAX_PAYLOAD_BYTES} can be recorded"
        )
    return payload


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
        frame = _unfolded(payload[1:])
        notation, length = _HEAD.unpack_from(frame)
        start = _HEAD.size + length
        skeleton, *rest = _read(notation, frame[_HEAD.size : start])
        for path, typecode, length in rest[0] if rest else ():
            end = start + length * _BYTES[typecode]
            _put(skeleton, path, _unpacked(typecode, length, frame[start:end]))
            start = end
        if start != len(frame) or not isinstance(skeleton, dict):
            raise ValueError(f"{len(frame) - start} bytes too many")
    except (struct.error, zstandard.ZstdError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise PayloadRefused(f"damaged payload of {len(payload)} bytes: {error}") from error
    return skeleton


def _unfolded(frame: bytes) -> bytes:
    # A damaged length must not have us ask for that much memory.
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= _MAX_FRAME_BYTES:
        raise ValueError(f"the frame says that it holds {size} bytes")
    return _zstd.decompress(frame)


def _written(skeleton: list[Any]) -> tuple[int, bytes]:
    """The notation and text of a skeleton that reads back as it is."""
    try:
        text = orjson.dumps(skeleton)
        # orjson writes NaN as null, and tuples, dates and data classes as what they are not.
        if orjson.loads(text) == skeleton:
            return _FAST, text
    except (TypeError, orjson.JSONDecodeError):
        pass
    try:
        text = json.dumps(skeleton, allow_nan=False, separators=(",", ":")).encode()
        if json.loads(text) == skeleton:
            return _ANY, text
    except (TypeError, ValueError):
        pass
    except RecursionError as error:
        raise PayloadInvalid("the data is nested too deeply to be recorded") from error
    raise PayloadInvalid(_fault(skeleton[0], "data") or "the data can't be written as JSON")


def _read(notation: int, text: bytes) -> Any:
    if notation == _FAST:
        return orjson.loads(text)
    if notation == _ANY:
        return json.loads(text)
    raise ValueError(f"notation {notation} is not known")


def _fault(value: Any, place: str) -> str | None:
    """The first thing in a value that JSON does not have, or None."""
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                return f"{place} has the key {key!r}: only strings can be keys"
            if fault := _fault(each, f"{place}.{key}"):
                return fault
        return None
    if isinstance(value, list):
        faults = (_fault(each, f"{place}[{index}]") for index, each in enumerate(value))
        return next(filter(None, faults), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place} is {value}: only finite numbers can be recorded"
    if value is None or isinstance(value, (str, bool, int, float)):
        return None
    return f"{place} is a {type(value).__name__}, which is not JSON: {value!r:.100}"


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
