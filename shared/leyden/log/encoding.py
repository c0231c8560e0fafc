"""Event payloads as bytes: compact, versioned, and read back exactly.

A payload is one version byte and a zstd frame. In the frame stand one byte for the skeleton's notation, its length
(uint32), the JSON skeleton, and the columns taken out of it: token ids as int32, log probs as float32 if every value
survives that, else as float64, each column by byte planes, which compress better. All numbers are little-endian.

Version 1 holds all of an event. Version 2, for calls to models, may refer to earlier calls of the rollout instead of
repeating what both begin with (see `sharing`), so that a conversation takes as much space as it has words, however
often it is sent. It also has the tokens' texts as columns.

Invariants:
- what is read is what was written, for any JSON object, and what is not JSON is refused by its place and value:
  encoding reads back what it wrote before it returns, or is told that the data was itself read from JSON;
- what does not look like ids or log probs stays in the skeleton, however odd it is;
- a payload of a newer version is refused by that version's number, and one that refers to a call that is not there by
  that call.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard

from leyden.log.columns import Columns, without_columns
from leyden.log.prefixes import NOTHING, NewMarks, Prefixes
from leyden.log.restoring import Call, put_back
from leyden.log.sharing import SharedColumns

WHOLE, LINEAR = 1, 2
"""The versions: all of an event, and what earlier calls of the rollout don't have."""

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


class BaseUnknown(PayloadRefused):
    """A payload refers to a call that is not among those given."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"a payload goes on from call {call_id}, which is not on record before it")
        self.call_id = call_id


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """A call's payload, the calls it refers to, and what later calls may share with it once it is on record."""

    payload: bytes
    bases: tuple[str, ...] = ()
    marks: NewMarks = field(default_factory=dict)


class _Zstd(threading.local):
    """This thread's compressor and decompressor: they can't be shared, and cost time to make."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


def encode(data: dict[str, Any]) -> bytes:
    """The payload of an event's data, whole.

    Raises:
        PayloadInvalid: a value is not JSON, a number is not finite, or it takes more than 1 GiB, or 256 MiB compressed.
    """
    columns = Columns()
    response = data.get("response")
    skeleton = data if not isinstance(response, dict) else {**data, "response": without_columns(response, columns)}
    notation, head = _written([skeleton, columns.places] if columns.places else [skeleton])
    return _folded(WHOLE, notation, head, columns)


def encode_call(data: dict[str, Any], earlier: Prefixes = NOTHING, *, parsed: bool = False) -> EncodedCall:
    """The payload of a call's data, without what it shares with earlier calls of its rollout that are on record.

    `parsed` says that all of the data are values as `orjson.loads` gives them, which need not be checked.

    Raises:
        PayloadInvalid: see `encode`.
    """
    try:
        if not parsed and orjson.loads(orjson.dumps(data)) != data:
            return EncodedCall(encode(data))
        columns = SharedColumns(earlier)
        skeleton = columns.without_shared(data)
        head = orjson.dumps([skeleton, columns.places, columns.bases])
    except (TypeError, UnicodeEncodeError, orjson.JSONDecodeError):
        # Integers of any size, half surrogates and great depth, which orjson does not write; or what is not JSON.
        return EncodedCall(encode(data))
    return EncodedCall(_folded(LINEAR, _FAST, head, columns), tuple(columns.bases), columns.marks)


def decode(payload: bytes, calls: Mapping[str, Call] | None = None) -> dict[str, Any]:
    """The data of a payload; `calls` are the earlier calls of its rollout, by id.

    What it shares with them is the same objects.

    Raises:
        BaseUnknown: it refers to a call that is not among them.
        PayloadRefused: the payload is of a newer version, or is damaged.
    """
    if not payload:
        raise PayloadRefused("an empty payload is not an event")
    if payload[0] not in (WHOLE, LINEAR):
        raise PayloadRefused(f"payload version {payload[0]} is not known here (up to {LINEAR}); upgrade this process")
    try:
        frame = _unfolded(payload[1:])
        notation, length = _HEAD.unpack_from(frame)
        start = _HEAD.size + length
        skeleton, *rest = _read(notation, frame[_HEAD.size : start])
        places, bases = (*rest, [], [])[:2]
        start += put_back(skeleton, places, frame[start:], [_base(calls, call_id) for call_id in bases])
        if start != len(frame) or not isinstance(skeleton, dict):
            raise ValueError(f"{len(frame) - start} bytes too many")
    except BaseUnknown:
        raise
    except (
        struct.error,
        zstandard.ZstdError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise PayloadRefused(f"damaged payload of {len(payload)} bytes: {error}") from error
    return skeleton


def _base(calls: Mapping[str, Call] | None, call_id: Any) -> Call:
    if not isinstance(call_id, str):
        raise ValueError(f"{call_id!r} is no call")
    base = (calls or {}).get(call_id)
    if base is None:
        raise BaseUnknown(call_id)
    return base


def _folded(version: int, notation: int, head: bytes, columns: Columns) -> bytes:
    frame = b"".join((_HEAD.pack(notation, len(head)), head, *columns.blobs))
    if len(frame) > _MAX_FRAME_BYTES:
        raise PayloadInvalid(f"an event of {len(frame)} bytes is too large: at most {_MAX_FRAME_BYTES} can be recorded")
    payload = bytes((version,)) + _zstd.compress(frame)
    if len(payload) > _MAX_PAYLOAD_BYTES:
        raise PayloadInvalid(
            f"an event of {len(payload)} bytes compressed is too large: at most {_MAX_PAYLOAD_BYTES} can be recorded"
        )
    return payload


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
