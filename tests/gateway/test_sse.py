from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_gateway.protocols import sse

payloads = st.lists(st.binary(min_size=1).filter(lambda data: not set(data) & set(b"\r\n") and data.strip() == data))
cuts = st.lists(st.integers(min_value=0, max_value=400), max_size=12)


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(payloads=payloads, cuts=cuts, crlf=st.booleans())
def test_events_come_out_as_they_went_in_however_the_bytes_are_cut(payloads, cuts, crlf):
    data = b"".join(map(sse.event, payloads))
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    events = sse.Events()

    assert [payload for piece in pieces(data, cuts) for payload in events.feed(piece)] == payloads
    assert not events.unfinished


def test_comments_and_other_fields_are_dropped_and_several_data_lines_joined():
    events = sse.Events()

    assert events.feed(b": hello\n\nevent: x\ndata: 1\nid: 7\ndata:2\n\nretry: 5\n\n") == [b"1\n2"]


def test_an_event_without_an_end_is_noticed():
    events = sse.Events()

    assert events.feed(b"data: half") == []
    assert events.unfinished


def test_an_endless_event_is_refused():
    events = sse.Events(max_event_bytes=100)

    with pytest.raises(ValueError, match="more than 100 bytes"):
        events.feed(b"data: " + b"x" * 200)
