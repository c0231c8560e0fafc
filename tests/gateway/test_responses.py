"""Responses over chat completions: streams are the unstreamed answer, and items go there and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from leyden_gateway.protocols import AgentError
from leyden_gateway.protocols.chat import ChatCompletions
from leyden_gateway.protocols.responses.envelope import Envelope, noted
from leyden_gateway.protocols.responses.items import Conversation
from leyden_gateway.protocols.responses.relay import ResponsesRelay
from leyden_gateway.protocols.responses.request import to_chat
from tests.gateway import stub
from tests.gateway.sampled import reasons, texts, tool_calls, unhurried

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASKED = {"model": "m", "input": "hi", "instructions": "Be brief.", "temperature": 0.3, "reasoning": {"effort": "low"}}
ENVELOPE = Envelope(noted(ASKED, "resp_1", 1_700_000_000), to_chat(ASKED, []) | {"temperature": 1.0})

anything = st.none() | st.booleans() | st.integers(0, 9) | texts | st.just([]) | st.just({}) | st.just([7])


def events_of(data: bytes) -> list[dict]:
    """The events of a stream, each as its own name says."""
    blocks = data.split(b"\n\n")[:-1]
    events = [orjson.loads(block.partition(b"\ndata: ")[2]) for block in blocks]
    assert [block.partition(b"\n")[0] for block in blocks] == [f"event: {event['type']}".encode() for event in events]
    return events


def relayed(chunks: list[dict]) -> tuple[list[dict], list[dict]]:
    """The events that are shown at once, and those that wait for the record."""
    relay = ResponsesRelay(ENVELOPE)
    live = b"".join([relay.feed(chunk) for chunk in chunks])
    return events_of(live), events_of(relay.finish())


def gathered(events: list[dict]) -> list[dict]:
    """The output as a client puts it together from the events of its items, checking that each has its place."""
    output: list[dict] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"] | {"gathered": ""})
        elif kind.endswith(".delta"):
            assert event["output_index"] == len(output) - 1
            assert event["item_id"] == output[-1]["id"]
            output[-1]["gathered"] += event["delta"]
        elif kind == "response.output_item.done":
            item = event["item"]
            assert output[-1]["gathered"] == said_by(item)
            output[-1] = item
    return output


def said_by(item: dict) -> str:
    """The text of an item."""
    if item["type"] == "function_call":
        return item["arguments"]
    (part,) = item["content"]
    return part.get("text", part.get("refusal"))


@unhurried
@given(text=texts, reasoning=st.none() | texts, calls=tool_calls(), reason=reasons, usage=st.booleans())
def test_a_stream_ends_as_the_unstreamed_answer_is(text, reasoning, calls, reason, usage):
    body = {"messages": [], "logprobs": True, "return_token_ids": True, "model": "m"}
    answer = stub.chat_response(body, text, finish_reason=reason, reasoning=reasoning, tool_calls=calls or None)
    if not usage:
        answer["usage"] = None

    live, held = relayed(stub.chat_chunks(answer, usage=True))
    events = [*live, *held]
    last = events[-1]

    assert last["response"] == ENVELOPE.whole(answer)
    assert last["type"] == f"response.{last['response']['status']}"
    assert gathered(events) == last["response"]["output"]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event, strict=True)
    Response.model_validate(last["response"], strict=True)


pieces = st.lists(
    st.one_of(
        st.fixed_dictionaries({}, optional={"content": texts, "reasoning": texts, "refusal": texts}),
        st.builds(
            lambda index, name, arguments: {
                "tool_calls": [
                    {
                        "index": index,
                        "id": f"c{index}",
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                ]
            },
            st.integers(0, 2),
            st.sampled_from(["", "f"]),
            texts,
        ),
    ),
    max_size=12,
)


@unhurried
@given(deltas=pieces, with_end=st.booleans())
def test_a_stream_in_any_order_says_all_that_the_unstreamed_answer_says(deltas, with_end):
    top = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**top, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if with_end and chunks:
        chunks[-1]["choices"][0]["finish_reason"] = "stop"
    else:
        chunks.append({**top, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assembly = ChatCompletions().assembly()
    for chunk in chunks:
        assembly.feed(chunk)

    live, held = relayed(chunks)
    streamed, whole = held[-1]["response"], ENVELOPE.whole(assembly.response())

    def said(response: dict) -> dict:
        """What was said in every kind of text, and the calls by their ids."""
        output = response.pop("output")
        kinds = [(item.get("call_id") or item["content"][0]["type"], said_by(item)) for item in output]
        return {kind: "".join(text for each, text in kinds if each == kind) for kind, _ in kinds}

    assert gathered([*live, *held]) == streamed["output"]
    assert not any(event["type"] in ("response.function_call_arguments.done", "response.completed") for event in live)
    mine, theirs = said(streamed), said(whole)
    assert {kind: text for kind, text in mine.items() if text} == {kind: text for kind, text in theirs.items() if text}
    assert streamed == whole


@unhurried
@given(
    choice=st.fixed_dictionaries(
        {},
        optional={
            "message": st.none()
            | st.fixed_dictionaries(
                {},
                optional={
                    "content": anything,
                    "reasoning": anything,
                    "tool_calls": anything
                    | st.lists(
                        anything
                        | st.fixed_dictionaries({}, optional={"index": anything, "id": anything, "function": anything})
                    ),
                },
            ),
            "finish_reason": anything,
        },
    ),
    usage=anything | st.fixed_dictionaries({}, optional={"prompt_tokens": anything, "prompt_tokens_details": anything}),
)
def test_an_answer_of_any_shape_becomes_a_response(choice, usage):
    Response.model_validate(ENVELOPE.whole({"choices": [choice], "usage": usage}), strict=True)


@unhurried
@given(text=texts, reasoning=st.none() | texts, calls=tool_calls())
def test_items_that_are_sent_back_are_the_message_that_was_sampled(text, reasoning, calls):
    answer = stub.chat_response({"messages": []}, text, reasoning=reasoning, tool_calls=calls or None)
    conversation = Conversation([{"role": "user", "content": "hi"}])
    for item in ENVELOPE.whole(answer)["output"]:
        conversation.add(item, "input")
    _, message = conversation.messages()

    assert (message["content"] or "") == text
    assert message.get("tool_calls", []) == calls
    assert message.get("reasoning", "") == (reasoning or "")


def test_only_one_of_the_calls_is_shown_before_the_record():
    """An agent may run a tool as soon as its call has ended."""
    made = [
        {"id": f"call-{number}", "type": "function", "function": {"name": "f", "arguments": "{ }"}} for number in (1, 2)
    ]
    answer = stub.chat_response({"messages": []}, "hm", tool_calls=made, finish_reason="tool_calls")

    live, held = relayed(stub.chat_chunks(answer, usage=True))

    kinds = [event["type"].removeprefix("response.") for event in live]
    assert kinds[-4:] == [
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
    ]
    assert [event["type"].removeprefix("response.") for event in held] == [
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_a_stream_that_fails_says_so_in_both_of_openais_ways():
    relay = ResponsesRelay(ENVELOPE)
    shown = relay.feed({"model": "m", "choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]})
    error, failed = events_of(relay.fail("the model server went away"))

    assert error["error"]["message"] == error["message"] == "the model server went away"
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "the model server went away"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "half"
    assert failed["sequence_number"] == len(events_of(shown)) + 1
    for event in (error, failed):
        EVENT.validate_python(event, strict=True)


IMAGE = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("given_input", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}], [
            {"role": "system", "content": "d"}, {"role": "system", "content": "s"},
        ]),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}], [
            {"role": "user", "content": "one"},
        ]),
        (
            [{"role": "user", "content": [
                {"type": "input_text", "text": "what is this"},
                {"type": "input_image", "image_url": IMAGE, "detail": "low"},
                {"type": "input_file", "file_data": "data:,x", "filename": "x"},
            ]}],
            [{"role": "user", "content": [
                {"type": "text", "text": "what is this"},
                {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                {"type": "file", "file": {"file_data": "data:,x", "filename": "x"}},
            ]}],
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "no"},
            ],
        ),
        (
            [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "one"},
                {"type": "function_call_output", "call_id": "2", "output": [
                    {"type": "input_text", "text": "two"}, {"type": "input_image", "image_url": IMAGE},
                ]},
            ],
            [
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ]},
                {"role": "tool", "tool_call_id": "1", "content": "one"},
                {"role": "tool", "tool_call_id": "2", "content": [
                    {"type": "text", "text": "two"}, {"type": "image_url", "image_url": {"url": IMAGE}},
                ]},
            ],
        ),
    ],
)  # fmt: skip
def test_input_becomes_messages(given_input, messages):
    assert to_chat({"input": given_input}, [])["messages"] == messages


def test_parameters_have_their_chat_names_and_unknown_ones_go_upstream():
    asked = {
        "model": "m", "input": "hi", "max_output_tokens": 9, "parallel_tool_calls": False, "stream": True,
        "store": False,
        "tools": [{"type": "function", "name": "f", "description": None, "parameters": {}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "truncation": "disabled", "background": False, "conversation": None, "top_k": 5,
    }  # fmt: skip

    assert to_chat(asked, []) == {
        "model": "m", "max_completion_tokens": 9, "parallel_tool_calls": False, "stream": True,
        "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "reasoning_effort": "high",
        "response_format": {"type": "json_object"}, "top_k": 5,
    }  # fmt: skip


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "name", "call_id", "output", "arguments", "format", "effort"]
            )
            | st.text(max_size=4),
            inner
            | st.sampled_from(
                ["message", "function_call", "function_call_output", "reasoning", "input_text", "assistant", "user"]
            ),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@unhurried
@given(
    asked=st.dictionaries(
        st.sampled_from(
            ["input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "metadata", "truncation"]
        ),
        junk,
    )
)
def test_a_request_is_translated_or_refused_whatever_it_holds(asked):
    try:
        body = to_chat(asked, [])
    except AgentError as error:
        named = error.param
    else:
        named = "nothing"
        assert body["messages"] or asked["input"] == []
        Envelope(noted(asked, "resp_1", 1), body).begun("m")
    assert named
