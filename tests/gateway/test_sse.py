"""Server-sent events: what comes in is what was sent, however it is cut; what goes out, clients' parsers read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import httpx
import orjson
import pytest
from anthropic import _streaming as anthropic_streaming
from hypothesis import given
from hypothesis import strategies as st
from openai import _streaming as openai_streaming

from leyden_gateway.protocols import sse
from tests.gateway.sampled import unhurried

lines = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=12)
fields = st.sampled_from([": a comment", ":", "event: named", "id: 7", "retry: 5", "unknown: x", "dat", "data "])
blocks = st.lists(fields | st.builds("{}{}".format, st.sampled_from(["data:", "data: "]), lines), max_size=5)
cuts = st.lists(st.integers(min_value=0, max_value=400), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(lines, inner, max_size=3),
    max_leaves=6,
)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def fed(events: sse.Events, parts: list[bytes]) -> list[bytes]:
    return [payload for part in parts for payload in events.feed(part)]


def by_the_specification(text: str) -> Iterator[bytes]:
    """The data of each event, read line by line; events without data are none."""
    data: list[str] = []
    for line in text.split("\n")[:-1]:
        if not line and data:
            yield "\n".join(data).encode()
            data = []
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))


@unhurried
@given(sent=st.lists(blocks), cuts=cuts, marks=st.integers(0, 2))
def test_one_byte_order_mark_before_the_first_line_is_no_part_of_it(sent, cuts, marks):
    text = "\n\n".join("\n".join(block) for block in sent) + "\n\n"
    data = "\ufeff" * marks + text

    got = fed(sse.Events(), pieces(data.encode(), [place % 5 for place in cuts]))

    assert got == list(by_the_specification(data.removeprefix("\ufeff")))


@unhurried
@given(
    sent=st.lists(blocks), cuts=cuts, ending=st.sampled_from(["\n", "\r\n"]), last=st.sampled_from(["", "\n", "\n\n"])
)
def test_events_come_out_as_they_went_in_however_the_bytes_are_cut(sent, cuts, ending, last):
    text = "\n\n".join("\n".join(block) for block in sent) + last
    data = text.replace("\n", ending).encode()

    assert fed(sse.Events(), pieces(data, cuts)) == list(by_the_specification(text))


@unhurried
@given(payloads=st.lists(values), cuts=cuts, name=st.sampled_from([b"", b"message"]))
def test_what_goes_out_comes_in_again(payloads, cuts, name):
    data = b"".join(sse.event(orjson.dumps(value), name) + sse.KEEP_ALIVE for value in payloads)
    events = sse.Events()

    assert list(map(orjson.loads, fed(events, pieces(data, cuts)))) == payloads
    assert not events.unfinished


@pytest.mark.parametrize("decoder", [openai_streaming.SSEDecoder, anthropic_streaming.SSEDecoder])
@unhurried
@given(payloads=st.lists(values), cuts=cuts)
def test_the_official_clients_read_what_goes_out(decoder, payloads, cuts):
    data = b"".join(sse.event(orjson.dumps(value), b"named") + sse.KEEP_ALIVE for value in payloads)

    read = decoder().iter_bytes(iter(pieces(data, cuts)))

    assert [orjson.loads(event.data) for event in read if event.data] == payloads


@unhurried
@given(payloads=st.lists(values))
def test_clients_that_read_text_line_by_line_read_what_goes_out(payloads):
    """Python's lines, and so httpx's, end also where JSON text may hold characters as they are: U+2028, U+0085."""
    data = b"".join(sse.event(orjson.dumps(value)) for value in payloads)

    read = [line for line in httpx.Response(200, content=data).iter_lines() if line]

    assert [orjson.loads(line.removeprefix("data: ")) for line in read] == payloads


def test_comments_and_other_fields_are_dropped_and_several_data_lines_joined():
    events = sse.Events()

    assert events.feed(b": hello\n\nevent: x\ndata: 1\nid: 7\ndata:2\n\nretry: 5\n\n") == [b"1\n2"]


@pytest.mark.parametrize("data", [b"data: half", b"data: half\n", b"data: half\r\n", b"data: half\r\n\r"])
def test_an_event_without_an_end_is_noticed(data):
    events = sse.Events()

    assert events.feed(data) == []
    assert events.unfinished


def test_an_endless_event_is_refused():
    events = sse.Events(max_event_bytes=100)

    with pytest.raises(ValueError, match="more than 100 bytes"):
        events.feed(b"data: " + b"x" * 200)


def test_an_event_four_times_as_long_takes_four_times_as_long():
    """Not sixteen times: what has come is not looked at again with every further part."""

    def seconds(parts: int) -> float:
        data = b"data: " + b"x" * (parts * 4096) + b"\n\n"
        events, began = sse.Events(), time.process_time()
        (payload,) = fed(events, [data[start : start + 4096] for start in range(0, len(data), 4096)])
        assert len(payload) == parts * 4096
        return time.process_time() - began

    seconds(64)
    short, long = min(seconds(512) for _ in range(3)), min(seconds(2048) for _ in range(3))
    assert long < 10 * short
