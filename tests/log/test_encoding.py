"""Payloads come back exactly, and what can't is refused by its place."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import random
import struct
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.log import PayloadInvalid, PayloadRefused, decode, encode, encoding
from leyden.log.encoding import WHOLE

texts = st.text(st.characters(codec=None), max_size=8)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in types, signs of zero and order of keys too."""
    return json.dumps(one) == json.dumps(other)


def answer(prompt: int = 40, tokens: int = 12, seed: int = 0) -> dict[str, Any]:
    """An answer as vLLM gives it, with token ids and log probs."""
    draw = random.Random(seed)
    words = [draw.choice(["hello", " wörld", "\n", "日本", "", "\ufffd", "\x00", "🙂"]) for _ in range(tokens)]
    return {
        "id": "chatcmpl-1",
        "prompt_token_ids": [draw.randrange(150_000) for _ in range(prompt)],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "".join(words)},
                "token_ids": [draw.randrange(150_000) for _ in range(tokens)],
                "logprobs": {
                    "content": [
                        {
                            "token": word,
                            "logprob": struct.unpack("f", struct.pack("f", -draw.random()))[0],
                            "bytes": list(word.encode()),
                            "top_logprobs": [],
                        }
                        for word in words
                    ]
                },
            }
        ],
        "usage": {"prompt_tokens": prompt},
    }


@given(st.dictionaries(texts, json_values, max_size=5))
@settings(max_examples=100, deadline=None)
def test_any_json_object_comes_back_as_it_was(data: dict[str, Any]):
    before = copy.deepcopy(data)
    assert same(decode(encode(data)), data)
    assert same(data, before)


@given(
    response=st.dictionaries(
        st.sampled_from(["prompt_token_ids", "choices", "other"]),
        st.lists(
            st.integers(-(2**33), 2**33)
            | st.booleans()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.dictionaries(
                st.sampled_from(["token_ids", "prompt_token_ids", "logprobs"]),
                json_values
                | st.lists(st.integers(0, 2**31 - 1), min_size=8, max_size=20)
                | st.dictionaries(st.sampled_from(["content", "token_logprobs"]), st.lists(json_values, max_size=9)),
            ),
            max_size=20,
        )
        | json_values,
    )
)
@settings(max_examples=100, deadline=None)
def test_what_only_looks_like_an_answer_comes_back_as_it_was(response: dict[str, Any]):
    assert same(decode(encode({"response": response})), {"response": response})


def paths(value: Any, way: tuple = ()) -> list[tuple]:
    """Where everything in a value is."""
    found = [way]
    if isinstance(value, dict):
        for key in value:
            found += paths(value[key], (*way, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            found += paths(value[index], (*way, index))
    return found


ODD = [
    True,
    False,
    None,
    0,
    1,
    -0.0,
    1.0,
    2**31,
    -(2**31) - 1,
    2**64,
    1e39,
    -1e-46,
    "",
    "84",
    [],
    {},
    [[]],
    [None, None],
]


@given(
    mutations=st.lists(
        st.tuples(
            st.integers(0, 10_000), st.sampled_from(ODD) | json_values, st.sampled_from(["put", "drop", "repeat"])
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_a_mutated_answer_comes_back_as_it_was(mutations: list[tuple[int, Any, str]]):
    data = {"model": "m", "response": answer()}
    for where, value, how in mutations:
        places = [path for path in paths(data) if path]
        if not places:
            break
        *way, last = places[where % len(places)]
        parent: Any = data
        for step in way:
            parent = parent[step]
        if how == "put":
            parent[last] = copy.deepcopy(value)
        elif how == "drop":
            del parent[last]
        elif isinstance(parent, list):
            parent.insert(last, copy.deepcopy(parent[last]))
    assert same(decode(encode(data)), data)


def test_an_answer_takes_a_third_of_its_json():
    data = {"response": answer(512, 64)}
    assert len(encode(data)) < len(json.dumps(data, separators=(",", ":"))) / 2.5
    assert same(decode(encode(data)), data)


def test_log_probs_that_need_double_precision_keep_it():
    data = {"response": {"choices": [{"logprobs": {"token_logprobs": [-0.1] * 9 + [-0.0, 1e300]}}]}}
    assert same(decode(encode(data)), data)


@pytest.mark.parametrize(
    "placeholder",
    [
        {"response": None},
        {"response": {"prompt_token_ids": None, "choices": [None, {"token_ids": None}]}},
        {"response": {"choices": [{"logprobs": {"content": ["a", ["b", [98], []]]}}]}},
        {"response": {"choices": [{"logprobs": None}, {"logprobs": {"content": []}}, {"logprobs": {"content": None}}]}},
        {"response": [["response", "prompt_token_ids"], "i", 9]},
        {},
    ],
)
def test_what_looks_like_our_own_notation_comes_back_as_it_was(placeholder: dict[str, Any]):
    assert same(decode(encode(placeholder)), placeholder)


@dataclasses.dataclass
class Point:
    """Not JSON, though orjson would write it."""

    x: int = 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"value": float("nan")}, r"data\.value is nan: only finite"),
        ({"a": [1, {"b": float("-inf")}]}, r"data\.a\[1\]\.b is -inf"),
        ({"response": {"choices": [{"logprobs": {"token_logprobs": [-1.0] * 9 + [float("nan")]}}]}}, r"\[9\] is nan"),
        ({"t": (1, 2)}, r"data\.t is a tuple"),
        ({"p": Point()}, r"data\.p is a Point"),
        ({"d": datetime.date(2026, 1, 1)}, r"data\.d is a date"),
        ({"b": b"x"}, r"data\.b is a bytes"),
        ({"k": {1: 2}}, r"data\.k has the key 1"),
        ({"n": 10**5000}, "JSON"),
    ],
)
def test_what_is_not_json_is_refused_by_its_place(data: dict[str, Any], words: str):
    with pytest.raises(PayloadInvalid, match=words):
        encode(data)


def test_deep_nesting_comes_back_or_is_refused_in_words():
    def nested(depth: int) -> dict[str, Any]:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return {"deep": value}

    assert same(decode(encode(nested(400))), nested(400))
    with pytest.raises(PayloadInvalid, match="nested too deeply"):
        encode(nested(100_000))


@pytest.mark.parametrize(
    ("limit", "words"), [("_MAX_FRAME_BYTES", "is too large"), ("_MAX_PAYLOAD_BYTES", "compressed")]
)
def test_what_is_too_large_for_redis_is_refused_by_its_size(monkeypatch: pytest.MonkeyPatch, limit: str, words: str):
    monkeypatch.setattr(encoding, limit, 50)
    with pytest.raises(PayloadInvalid, match=words):
        encode({"response": answer()})


def test_a_newer_version_is_refused_by_its_number():
    with pytest.raises(PayloadRefused, match="payload version 9 is not known here"):
        decode(b"\x09" + encode({})[1:])
    with pytest.raises(PayloadRefused, match="empty payload"):
        decode(b"")


@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 10_000),
    inside=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_damaged_bytes_are_refused_or_read_but_never_crash(flips: list[tuple[int, int]], cut: int, inside: bool):
    whole = encode({"response": answer()})
    damaged = bytearray(zstandard.ZstdDecompressor().decompress(whole[1:]) if inside else whole[1:])
    for place, change in flips:
        damaged[place % len(damaged)] ^= change
    if not flips:
        damaged = damaged[: cut % len(damaged)]
    payload = bytes([WHOLE]) + (zstandard.ZstdCompressor().compress(bytes(damaged)) if inside else bytes(damaged))
    try:
        assert isinstance(decode(payload), dict)
    except PayloadRefused:
        return
    assert flips


def test_a_frame_that_claims_to_be_huge_is_refused_before_memory_is_asked_for():
    huge = zstandard.ZstdCompressor().compressobj(size=-1)
    for frame in (
        huge.compress(b"x" * 100) + huge.flush(),
        bytes.fromhex("28b52ffde0") + (2**50).to_bytes(8, "little") + b"\x01\x00\x00",
    ):
        with pytest.raises(PayloadRefused, match="damaged"):
            decode(bytes([WHOLE]) + frame)
