"""Anthropic Messages over HTTP: what goes upstream, what stands on record, what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from leyden.triplet import to_triplet
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.stub import MODEL, TEXT
from tests.gateway.test_calls import calls_of

QUESTION = "what is two and two"
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "number"}}},
}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def base(rollout_id: str = "r1", **more: Any) -> str:
    """What an attempt's ANTHROPIC_BASE_URL is, after the gateway's address."""
    return f"{proxy(rollout_id, **more).removesuffix('/openai/v1')}/anthropic"


def ask(content: Any = QUESTION, **more: Any) -> dict[str, Any]:
    """The body of a Messages request."""
    return {"model": "claude", "max_tokens": 64, "messages": [{"role": "user", "content": content}], **more}


async def post(api: httpx.AsyncClient, body: Any, *, path: str = "messages", **more: Any) -> httpx.Response:
    return await api.post(f"{base(**more)}/v1/{path}", json=body)


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The named events of a stream."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return found


async def test_a_message_is_recorded_as_the_chat_call_that_it_was_made_of(api, served, default):
    await create(api)
    said = chat(temperature=0.2, max_tokens=64)
    await api.post(f"{proxy('r1')}/chat/completions", json=said | {"model": "claude"})

    answer = await post(api, ask(temperature=0.2))

    plain, call = await calls_of(default)
    own = {"latency_ms", "call_id", "path"}
    assert {key: call[key] for key in set(call) - own} == {key: plain[key] for key in set(plain) - own}
    assert call["path"] == "anthropic/v1/messages"
    assert call["asked"] == {"model": "claude", "temperature": 0.2}
    assert call["request"] == served.requests[1] == served.requests[0]
    assert served.paths == ["chat/completions"] * 2
    triplet = to_triplet(call)
    assert triplet["response_token_ids"] == stub.token_ids(TEXT)
    assert len(triplet["response_log_probs"]) == 4
    message = Message.model_validate(answer.json(), strict=True)
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", TEXT)]
    assert (message.stop_reason, message.stop_sequence, message.role, message.model) == (
        "end_turn",
        None,
        "assistant",
        MODEL,
    )
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(triplet["prompt_token_ids"]), 4)
    assert "token_ids" not in answer.text


async def test_a_streamed_message_is_recorded_like_the_unstreamed_one_and_ends_after_the_record(api, served, default):
    await create(api)
    await post(api, ask())

    streamed = await post(api, ask(stream=True))

    plain, call = await calls_of(default)
    assert call["response"]["choices"][0]["token_ids"] == plain["response"]["choices"][0]["token_ids"]
    assert to_triplet(call) | {"call_id": ""} == to_triplet(plain) | {"call_id": ""}
    assert call["request"] == plain["request"] | {"stream": True, "stream_options": {"include_usage": True}}
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_of(streamed.text)
    assert all(name == data["type"] for name, data in events)
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    for _, data in events:
        EVENT.validate_python(data)
    start, end = events[0][1]["message"], events[-2][1]
    assert start["usage"]["input_tokens"] == end["usage"]["input_tokens"] == len(stub.prompt_ids(served.requests[1]))
    assert end["delta"]["stop_reason"] == "end_turn"
    assert end["usage"]["output_tokens"] == 4


async def test_the_first_token_is_live_and_the_end_waits_for_the_record(api, served, default):
    gates = [asyncio.Event() for _ in range(4)]
    served.otherwise = stub.paced(gates)
    await create(api)

    async with api.stream("POST", f"{base()}/v1/messages", json=ask(stream=True)) as answer:
        parts = answer.aiter_text()
        live = ""
        while "the " not in live:
            live += await anext(parts)
        assert '"message_start"' in live
        assert await calls_of(default) == []
        for gate in gates:
            gate.set()
        rest = ""
        async for part in parts:
            if "message_stop" in part:
                assert len(await calls_of(default)) == 1
            rest += part

    assert '"message_stop"' not in live
    assert '"message_stop"' in rest


async def test_tools_go_up_and_their_calls_come_back(api, served, default):
    served.otherwise = stub.answer("I add", tool_calls=[CALL], finish_reason="tool_calls")
    await create(api)

    answer = await post(api, ask(tools=[ADD], tool_choice={"type": "any", "disable_parallel_tool_use": True}))

    (sent,) = served.requests
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]}}
    ]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)
    message = Message.model_validate(answer.json(), strict=True)
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert answer.json()["content"][1] == {"type": "tool_use", "id": "call-1", "name": "add", "input": {"a": 2, "b": 2}}


async def test_a_conversation_with_tools_and_thoughts_goes_up_as_chat_messages(api, served):
    await create(api)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "I add"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "4"}, picture]},
                {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "user", "content": "please"},
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
        {"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Always."},
    ]

    answer = await post(
        api, {"model": "m", "max_tokens": 5, "system": system, "messages": conversation, "metadata": {"user_id": "u"}}
    )

    assert answer.status_code == 200, answer.text
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    function = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert served.requests[0]["messages"] == [
        {"role": "system", "content": "You add.\nAlways."},
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {
            "role": "assistant",
            "content": "I add",
            "reasoning": "hm",
            "tool_calls": [function, function | {"id": "t2", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "4"},
        {"role": "tool", "tool_call_id": "t2", "content": "error"},
        {
            "role": "user",
            "content": [image, {"type": "text", "text": "go on"}, {"type": "text", "text": "please"}],
        },
    ]


async def test_a_message_that_is_begun_is_continued(api, served):
    await create(api)
    body = ask()
    body["messages"].append({"role": "assistant", "content": "The answer is"})

    await post(api, body)

    (sent,) = served.requests
    assert sent["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


async def test_what_an_agent_asks_of_its_thinking_is_followed_where_it_can_be_and_on_record(api, served, default):
    await create(api)
    for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        await post(api, ask(thinking=thinking, stop_sequences=["\n\nHuman:"], top_k=5, top_p=0.5))

    off, on, free = served.requests
    assert off["chat_template_kwargs"] == {"enable_thinking": False}
    assert on["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in free
    assert off["stop"] == ["\n\nHuman:"]
    assert (off["top_k"], off["top_p"]) == (-1, 1.0)
    call = (await calls_of(default))[1]
    assert call["original"] == {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert (call["asked"]["top_k"], call["asked"]["top_p"]) == (5, 0.5)


@pytest.mark.parametrize(
    ("reason", "stop", "said"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", 151645, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("content_filter", None, ("refusal", None)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_why_an_answer_ended_is_said_in_the_providers_words(api, served, reason, stop, said, stream):
    served.otherwise = stub.answer(
        finish_reason=reason, change=lambda response: response["choices"][0].update(stop_reason=stop)
    )
    await create(api)

    answer = await post(api, ask(stream=stream))

    end = events_of(answer.text)[-2][1]["delta"] if stream else answer.json()
    assert (end["stop_reason"], end["stop_sequence"]) == said


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_object_stand_in_an_object_as_they_are(api, served, stream):
    broken = CALL | {"function": {"name": "add", "arguments": '{"a": 2, "b'}}
    served.otherwise = stub.answer("", tool_calls=[broken], finish_reason="length")
    await create(api)

    answer = await post(api, ask(tools=[ADD], stream=stream))

    if stream:
        deltas = [data["delta"] for name, data in events_of(answer.text) if name == "content_block_delta"]
        assert [orjson.loads(delta["partial_json"]) for delta in deltas] == [{"INVALID_JSON": '{"a": 2, "b'}]
    else:
        assert answer.json()["content"][0]["input"] == {"INVALID_JSON": '{"a": 2, "b'}
        assert answer.json()["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "model"),
        (ask() | {"max_tokens": None}, "max_tokens"),
        (ask(max_tokens=0), "max_tokens"),
        (ask(mcp_servers=[{}]), "mcp_servers"),
        (ask(container="c"), "container"),
        (ask(n=2), "n: "),
        (ask(temperature="hot"), "temperature"),
        (ask([{"type": "document", "source": {}}]), "messages.0.user.content.0"),
        (
            ask([{"type": "image", "source": {"type": "file", "file_id": "f"}}]),
            "messages.0.user.content.0.image.source",
        ),
        (ask(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools.0"),
        (ask(tool_choice={"type": "any"}), "tool_choice"),
        (ask(tools=[ADD], tool_choice={"type": "tool", "name": "sub"}), "tool_choice.name"),
        (ask(messages=[]), "messages"),
        (ask(messages=[{"role": "developer", "content": "x"}]), "messages.0"),
    ],
)
async def test_what_cant_be_done_is_refused_by_the_name_of_its_parameter(api, served, body, named):
    await create(api)

    answer = await post(api, body)

    assert answer.status_code == 400
    said = answer.json()
    assert (said["type"], said["error"]["type"]) == ("error", "invalid_request_error")
    assert said["error"]["message"].startswith(named)
    assert served.requests == []


async def test_a_conversation_that_is_to_be_kept_here_is_refused_as_clients_understand(api, served, default):
    await create(api)

    answer = await post(api, ask(thread={"type": "create"}))

    assert _type(answer, 400) == "invalid_request_error"
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert (await calls_of(default), (await default.pause.state()).inflight) == ([], 0)


async def test_every_error_has_the_providers_shape(api, served, default, settings, url):
    async with httpx.AsyncClient(base_url=url) as anyone:
        assert _type(await post(anyone, ask()), 401) == "authentication_error"
        assert _type(await anyone.post(f"{base()}/v1/nothing", json={}, headers=ADMIN), 404) == "not_found_error"
    assert _type(await post(api, ask()), 404) == "not_found_error"
    await create(api)
    assert _type(await api.get(f"{base()}/v1/messages"), 405) == "invalid_request_error"
    assert _type(await api.post(f"{base()}/v1/messages", content=b"[]"), 400) == "invalid_request_error"
    for status, kind in ((400, "invalid_request_error"), (413, "request_too_large"), (529, "overloaded_error")):
        served.otherwise = stub.status(status, {"error": {"message": "no room", "type": "x", "code": status}})
        answer = await post(api, ask())
        assert _type(answer, status) == kind
        assert answer.json()["error"]["message"] == "no room"
    served.otherwise = stub.raw(b"<html>")
    assert _type(await post(api, ask()), 502) == "api_error"
    await api.post("/proxy/pause", json={"reason": "update"})
    paused = await post(api, ask())
    assert _type(paused, 429) == "rate_limit_error"
    assert (paused.json()["reason"], paused.headers["x-agl-paused"]) == ("update", "true")
    await api.post("/proxy/resume")
    await api.delete("/api/models")
    assert _type(await post(api, ask()), 503) == "overloaded_error"


def _type(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == "error"
    return answer.json()["error"]["type"]


@pytest.mark.parametrize(
    "spoil",
    [
        {"content": 7},
        {"content": None, "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}]},
        {"content": None, "tool_calls": "add"},
        {"content": None, "tool_calls": [7]},
        {"reasoning": ["hm"]},
    ],
)
async def test_a_message_that_is_none_is_on_record_as_malformed_and_a_502(api, served, default, spoil):
    served.otherwise = stub.answer(change=lambda response: response["choices"][0]["message"].update(spoil))
    await create(api)

    answer = await post(api, ask())

    (call,) = await calls_of(default)
    assert _type(answer, 502) == "api_error"
    assert call["status"] == "error"
    assert "message's" in call["fault"]


async def test_a_stream_that_breaks_ends_with_an_error_event_and_never_with_a_stop(api, served, default):
    chunk = b'{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "the"}}]}'
    served.otherwise = stub.events(chunk, cut=True)
    await create(api)

    answer = await post(api, ask(stream=True))

    name, data = events_of(answer.text)[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    assert "message_stop" not in answer.text
    assert (await calls_of(default))[0]["status"] == "error"


async def test_silences_are_broken_by_pings(api, settings, model, default):
    gate = asyncio.Event()
    model.otherwise = stub.once(gate)
    async with (
        serving(settings.model_copy(update={"keep_alive_seconds": 0.05})) as url,
        httpx.AsyncClient(base_url=url, headers=ADMIN) as client,
    ):
        await client.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(client)
        async with client.stream("POST", f"{base()}/v1/messages", json=ask(stream=True)) as answer:
            parts = answer.aiter_text()
            assert await anext(parts) == 'event: ping\ndata: {"type":"ping"}\n\n'
            gate.set()
            rest = "".join([part async for part in parts])

    assert "message_stop" in rest


async def test_a_retry_gets_the_answer_that_its_first_call_missed(api, served, default):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    await create(api)
    with pytest.raises(httpx.ReadTimeout):
        await api.post(f"{base()}/v1/messages", json=ask(stream=True), headers={"idempotency-key": "k"}, timeout=0.3)
    gate.set()

    again = await api.post(f"{base()}/v1/messages", json=ask(stream=True), headers={"idempotency-key": "k"})

    text = "".join(
        data["delta"].get("text", "") for name, data in events_of(again.text) if name == "content_block_delta"
    )
    assert text == TEXT
    assert len(served.requests) == 1


async def test_tokens_are_counted_by_the_models_server_and_no_call_is_recorded(api, served, default):
    await create(api)
    body = ask(system="You add.", tools=[ADD], thinking={"type": "disabled"})
    called = await post(api, body)
    del body["max_tokens"]

    answer = await post(api, body, path="messages/count_tokens")

    count = MessageTokensCount.model_validate(answer.json(), strict=True)
    assert count.input_tokens == called.json()["usage"]["input_tokens"]
    sent, counted = served.requests
    assert served.paths == ["chat/completions", "tokenize"]
    assert counted == {key: sent[key] for key in ("model", "messages", "tools", "chat_template_kwargs")}
    assert len(await calls_of(default)) == 1


async def test_tokens_that_cant_be_counted_are_a_clear_error(api, served, default):
    await create(api)
    body = {"model": "claude", "messages": [{"role": "user", "content": "hi"}]}

    served.otherwise = stub.status(404)
    answer = await post(api, body, path="messages/count_tokens")
    assert _type(answer, 404) == "not_found_error"
    assert "no tokenizer" in answer.json()["error"]["message"]
    served.otherwise = stub.status(400, {"error": {"message": "no template", "code": 400}})
    assert _type(await post(api, body, path="messages/count_tokens"), 400) == "invalid_request_error"
    served.otherwise = stub.raw(b"{}")
    assert _type(await post(api, body, path="messages/count_tokens"), 502) == "api_error"
    served.otherwise = stub.drop()
    assert _type(await post(api, body, path="messages/count_tokens"), 502) == "api_error"
    assert (
        _type(await post(api, body | {"max_tokens": 5}, path="messages/count_tokens"), 400) == "invalid_request_error"
    )
    assert _type(await api.get(f"{base()}/v1/messages/count_tokens"), 405) == "invalid_request_error"
    assert await calls_of(default) == []


async def test_tokens_of_a_model_without_servers_are_a_503(api):
    await create(api)
    body = {"model": "claude", "messages": [{"role": "user", "content": "hi"}]}

    assert _type(await post(api, body, path="messages/count_tokens"), 503) == "overloaded_error"


async def test_tokens_are_counted_by_another_server_when_one_is_away(api, served, model):
    await create(api)
    async with stub.StubModel() as other:
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": other.url}])
        for away in (served, other):
            away.otherwise = stub.drop()
            answer = await post(
                api, {"model": "m", "messages": [{"role": "user", "content": "a b"}]}, path="messages/count_tokens"
            )
            assert answer.status_code == 200, answer.text
            away.otherwise = stub.answer()
