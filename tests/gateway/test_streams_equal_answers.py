"""The chunks of a stream, put together, are the response of the same call unstreamed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_gateway.protocols import Malformed
from leyden_gateway.protocols.chat import ChatCompletions
from leyden_gateway.protocols.completions import Completions
from tests.gateway import stub
from tests.gateway.sampled import spoken, tool_calls, unhurried

CHAT, COMPLETIONS = ChatCompletions(), Completions()


def bare(value: Any) -> Any:
    """Without fields that are null: a stream leaves out what an answer spells as null."""
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items() if each is not None}
    return [bare(each) for each in value] if isinstance(value, list) else value


@unhurried
@given(text=spoken, reasoning=st.none() | spoken, calls=tool_calls(), n=st.integers(1, 3), log_probs=st.booleans())
def test_a_chat_stream_assembles_to_the_unstreamed_answer(text, reasoning, calls, n, log_probs):
    body = {"messages": [{"role": "user", "content": "hi"}], "n": n, "logprobs": log_probs, "return_token_ids": True}
    message: dict[str, Any] = {"reasoning": reasoning} | ({"tool_calls": calls} if calls else {})
    response = stub.chat_response(body, text, finish_reason="tool_calls" if calls else "stop", **message)

    assembly = CHAT.assembly()
    for chunk in stub.chat_chunks(response, usage=True):
        assembly.feed(chunk)

    assert assembly.finished
    assert bare(assembly.response()) == bare(response)


@unhurried
@given(text=spoken, n=st.integers(1, 3), log_probs=st.sampled_from([None, 0, 1, True]))
def test_a_completion_stream_assembles_to_the_unstreamed_answer(text, n, log_probs):
    response = stub.completion_response({"prompt": "hi", "n": n, "logprobs": log_probs, "return_token_ids": True}, text)

    assembly = COMPLETIONS.assembly()
    for chunk in stub.completion_chunks(response, usage=True):
        assembly.feed(chunk)

    assert assembly.finished
    assert bare(assembly.response()) == bare(response)


@unhurried
@given(text=spoken, calls=tool_calls(), n=st.integers(1, 3))
def test_a_recorded_chat_answer_replays_as_a_stream_of_itself(text, calls, n):
    body = {"messages": [], "n": n, "logprobs": True, "return_token_ids": True}
    response = stub.chat_response(body, text, **({"tool_calls": calls} if calls else {}))
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}

    replayed = CHAT.replay(response, asked)

    assert replayed.endswith(b"data: [DONE]\n\n")
    assembly = CHAT.assembly()
    for payload in replayed.split(b"\n\n")[:-2]:
        assembly.feed(orjson.loads(payload.removeprefix(b"data: ")))
    assert bare(assembly.response()) == bare(response)


@unhurried
@given(text=spoken, n=st.integers(1, 2))
def test_a_recorded_completion_replays_as_a_stream_of_itself(text, n):
    body = {"prompt": "hi", "n": n, "logprobs": 1, "return_token_ids": True}
    response = stub.completion_response(body, text)
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}

    assembly = COMPLETIONS.assembly()
    for payload in COMPLETIONS.replay(response, asked).split(b"\n\n")[:-2]:
        assembly.feed(orjson.loads(payload.removeprefix(b"data: ")))
    assert bare(assembly.response()) == bare(response)


@unhurried
@given(text=spoken, ids=st.booleans(), log_probs=st.booleans(), usage=st.booleans(), n=st.integers(1, 2))
def test_a_relayed_stream_holds_what_was_asked_for_and_ends_only_when_told(text, ids, log_probs, usage, n):
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": usage}, "n": n, "messages": []}
    asked |= ({"return_token_ids": True} if ids else {}) | ({"logprobs": True} if log_probs else {})
    captured = asked | {"return_token_ids": True, "logprobs": True}
    response = stub.chat_response(captured, text)
    relay = CHAT.relay(asked)

    live = b"".join(relay.feed(chunk) for chunk in stub.chat_chunks(response, usage=True))
    end = relay.finish()

    assert b'"finish_reason":"stop"' not in live
    assert b"[DONE]" not in live
    assert end.endswith(b"data: [DONE]\n\n")
    assembly = CHAT.assembly()
    for payload in (live + end).split(b"\n\n")[:-2]:
        assembly.feed(orjson.loads(payload.removeprefix(b"data: ")))
    seen = assembly.response()
    assert [choice["message"]["content"] for choice in seen["choices"]] == [text] * n
    assert all(("token_ids" in choice) == ids for choice in seen["choices"])
    assert all((choice["logprobs"] is not None) == log_probs for choice in seen["choices"])
    assert ("prompt_token_ids" in seen) == ids
    assert (seen["usage"] is not None) == usage


@pytest.mark.parametrize(
    ("chunk", "fault"),
    [
        ({"choices": [{"index": "0"}]}, "index '0'"),
        ({"choices": [7]}, "choice is int"),
        ({"choices": None}, "choices are None"),
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ({"choices": [{"index": 0, "delta": "x"}]}, "delta is str"),
        ({"choices": [{"index": 0, "delta": {}, "token_ids": 5}]}, "token_ids are int"),
        ({"choices": [{"index": 0, "delta": {}, "logprobs": []}]}, "logprobs are list"),
        ({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": None}]}}]}, "index None"),
        ({"choices": [{"index": 0, "delta": {"tool_calls": 7}}]}, "tool calls are int"),
        ({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": "add"}]}}]}, "function 'add'"),
    ],
)
def test_a_chunk_that_is_none_is_refused_by_what_is_wrong_with_it(chunk, fault):
    with pytest.raises(Malformed, match=fault):
        CHAT.assembly().feed(chunk)
