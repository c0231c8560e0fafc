"""A Message's stream, put together by the official client's own code, is the Message that the same answer is whole."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from leyden_gateway.protocols import AgentError, Malformed
from leyden_gateway.protocols.anthropic.messages import Messages
from leyden_gateway.protocols.chat import ChatCompletions
from tests.gateway import stub
from tests.gateway.sampled import reasons, texts, tool_calls, unhurried

CHAT, MESSAGES = ChatCompletions(), Messages()
ASKED: dict[str, Any] = {"stream": True}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)

arguments = st.sampled_from(['{"a": 2, "b": 2}', "{}", "", "[1]", '{"a": ', "nonsense", '{"a": "\\u00e9 ü"}']) | texts


def accumulated(stream: bytes) -> dict[str, Any]:
    """What the official client makes of a stream."""
    snapshot, buffers = None, {}
    for block in stream.decode().split("\n\n")[:-1]:
        match = re.fullmatch(r"event: (\w+)\ndata: (.*)", block, re.DOTALL)
        assert match is not None, block
        event = EVENT.validate_python(orjson.loads(match[2]))
        assert event.type == match[1]
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return snapshot.model_dump(exclude_none=True)


def unstreamed(response: dict[str, Any]) -> dict[str, Any]:
    """What it makes of the whole answer."""
    return Message.model_validate(MESSAGES.answer(response, {}), strict=True).model_dump(exclude_none=True)


@unhurried
@given(text=texts, reasoning=st.none() | texts, calls=tool_calls(arguments), reason=reasons)
def test_a_stream_is_the_message_of_the_unstreamed_answer(text, reasoning, calls, reason):
    body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "return_token_ids": True}
    message: dict[str, Any] = {"reasoning": reasoning} | ({"tool_calls": calls} if calls else {})
    response = stub.chat_response(body, text, finish_reason=reason, **message)
    relay = MESSAGES.relay(ASKED)

    live = b"".join(relay.feed(chunk) for chunk in stub.chat_chunks(response, usage=True))
    end = relay.finish()

    assert b"message_delta" not in live
    assert b"input_json_delta" not in live
    assert accumulated(live + end) == unstreamed(response)
    assert accumulated(MESSAGES.replay(response, ASKED)) == unstreamed(response)


def _delta(kind: str, text: str, number: int) -> dict[str, Any]:
    if kind != "tool_calls":
        return {kind: text}
    return {"tool_calls": [{"index": number, "id": f"call-{number}", "function": {"name": "", "arguments": text}}]}


deltas = st.lists(
    st.builds(_delta, st.sampled_from(["content", "reasoning", "tool_calls"]), texts, st.integers(0, 2)), max_size=12
)


@unhurried
@given(deltas=deltas, reason=reasons, cuts=st.integers(0, 3))
def test_any_stream_whatever_its_order_says_the_same_as_the_unstreamed_answer(deltas, reason, cuts):
    """Chunks that go to and fro give more blocks; joined kind by kind they are those of the whole answer."""
    top = {"id": "chatcmpl-1", "model": "m", "created": 1, "prompt_token_ids": [1, 2]}
    named = [{"tool_calls": [{"index": number, "function": {"name": "add"}}]} for number in range(cuts)]
    chunks = [{**top, "choices": [{"index": 0, "delta": delta}]} for delta in [*named, *deltas]]
    chunks.append({**top, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append({**top, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
    assembly, relay = CHAT.assembly(), MESSAGES.relay(ASKED)
    for chunk in chunks:
        assembly.feed(chunk)

    streamed = accumulated(b"".join(map(relay.feed, chunks)) + relay.finish())

    whole = unstreamed(assembly.response())
    assert _joined(streamed.pop("content")) == _joined(whole.pop("content"))
    assert streamed == whole


fields = st.none() | st.booleans() | st.integers(0, 2) | texts | st.lists(st.integers(0, 2), max_size=2)
functions = fields | st.dictionaries(st.sampled_from(["name", "arguments"]), fields)
parts = fields | st.fixed_dictionaries(
    {}, optional={"index": st.integers(0, 1) | fields, "id": fields, "function": functions}
)
spoken = fields | st.fixed_dictionaries(
    {}, optional={"content": fields, "reasoning": fields, "tool_calls": fields | st.lists(parts, max_size=2)}
)
pieces = st.fixed_dictionaries({"index": st.just(0)}, optional={"delta": spoken, "finish_reason": st.just("stop")})
chunks = st.fixed_dictionaries(
    {"choices": st.lists(pieces, max_size=2)}, optional={"usage": fields, "prompt_token_ids": fields, "id": fields}
)


@unhurried
@given(sent=st.lists(chunks, max_size=4))
def test_whatever_a_server_sends_is_relayed_or_malformed(sent):
    assembly, relay = MESSAGES.assembly(), MESSAGES.relay(ASKED)
    try:
        for chunk in sent:
            assembly.feed(chunk)
            relay.feed(chunk)
        MESSAGES.check(assembly.response(), {})
    except Malformed:
        return
    relay.finish()
    MESSAGES.answer(assembly.response(), ASKED)
    MESSAGES.replay(assembly.response(), ASKED)


def _joined(content: list[dict[str, Any]]) -> dict[str, Any]:
    texts = {kind: "".join(block.get(kind, "") for block in content) for kind in ("thinking", "text")}
    return texts | {"calls": [block for block in content if block["type"] == "tool_use"]}


words = st.sampled_from(["user", "assistant", "text", "image", "tool_use", "tool_result", "thinking", "base64", "auto"])
leaves = st.none() | st.booleans() | st.integers(-1, 3) | words
names = st.sampled_from(["type", "role", "content", "text", "name", "input", "id", "source", "thinking", "tool_use_id"])
inner = leaves | st.lists(leaves, max_size=2) | st.dictionaries(names, leaves, max_size=3)
shapes = inner | st.lists(st.dictionaries(names, inner | st.lists(inner, max_size=2), max_size=4), max_size=2)
parameters = st.sampled_from(["messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream"])


@unhurried
@given(changes=st.dictionaries(parameters, shapes, max_size=3))
def test_any_request_is_translated_or_refused_by_name(changes):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **changes}
    assert _refused_parameter(body) in {"", *changes}


def _refused_parameter(body: dict[str, Any]) -> str:
    try:
        orjson.dumps(MESSAGES.upstream_body(body))
    except AgentError as refused:
        return str(refused).split(".")[0].split(":")[0]
    return ""


@unhurried
@given(turns=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), min_size=1, max_size=6), more=texts)
def test_a_conversation_that_goes_on_keeps_the_messages_it_had(turns, more):
    messages = [{"role": role, "content": text} for role, text in turns]
    other = "user" if turns[-1][0] == "assistant" else "assistant"
    body = {"model": "m", "max_tokens": 5, "messages": messages}

    before = MESSAGES.upstream_body(body)["messages"]
    after = MESSAGES.upstream_body(body | {"messages": [*messages, {"role": other, "content": more}]})["messages"]

    assert after[:-1] == before


@pytest.mark.parametrize("name", ["cache_control", "metadata", "service_tier", "betas"])
def test_what_concerns_only_the_providers_service_changes_nothing(name):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}

    assert MESSAGES.upstream_body(body | {name: {"x": 1}}) == MESSAGES.upstream_body(body)
