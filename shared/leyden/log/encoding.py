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
from typing import Any

import orjson
import zstandard

from leyden.log.columns import Columns, put_back, without_columns

VERSION = 1

_LEVEL = 1
_MAX_FRAME_BYTES = 1 << 30
"""What a payload may take uncompressed."""

_MAX_PAYLOAD_BYTES = 1 << 28
"""What it may take in Redis, which breaks the connection over a value of more than 512 MiB."""

_FAST, _ANY = 0, 1
"""How the skeleton is written: by orjson, or by json, which also knows integers of any size and lone surrogates."""

_HEAD = struct.Struct("<BI")


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


def encode(data: dict[str, Any]) -> bytes:
    """The payload of an event's data.

    Raises:
        PayloadInvalid: a value is not JSON, a number is not finite, or it takes more than 1 GiB, or 256 MiB compressed.
    """
    columns = Columns()
    response = data.get("response")
    skeleton = data if not isinstance(response, dict) else {**data, "response": without_columns(response, columns)}
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
        start += put_back(skeleton, rest[0] if rest else [], frame[start:])
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
