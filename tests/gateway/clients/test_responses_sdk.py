"""The official OpenAI SDK speaks Responses with the gateway, unmodified."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from leyden.auth import AgentClaims, Authority
from leyden.log import Log
from tests.gateway import stub
from tests.gateway.conftest import KEY, create, proxy, serving
from tests.gateway.stub import MODEL, TEXT

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


async def token(log: Log, rollout_id: str = "r1", attempt: str = "0") -> str:
    """An agent's token."""
    return Authority(KEY).mint(AgentClaims(rollout_id, (await log.locate(rollout_id)).nonce, attempt))


@pytest.fixture
async def sdk(api, url, log: Log):
    """The official client, with an agent's token."""
    await create(api)
    async with openai.AsyncOpenAI(base_url=url + proxy("r1"), api_key=await token(log), max_retries=2) as client:
        yield client


async def test_it_asks_and_what_is_on_record_is_a_chat_call(sdk, served, default):
    response = await sdk.responses.create(
        model="gpt", instructions="Be brief.", input="what is two and two", max_output_tokens=50, metadata={"k": "v"}
    )

    assert type(response) is Response
    assert response.usage is not None
    assert response.output_text == TEXT
    assert (response.status, response.model, response.instructions) == ("completed", MODEL, "Be brief.")
    assert (response.max_output_tokens, response.metadata) == (50, {"k": "v"})
    assert (response.usage.output_tokens, response.temperature) == (4, 1.0)
    assert served.paths == ["chat/completions"]
    assert served.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what is two and two"},
    ]
    assert served.requests[0]["max_completion_tokens"] == 50
    (event,) = await default.events.of_attempt("r1")
    assert event.data["request"] == served.requests[0]
    assert event.data["path"] == "openai/v1/responses"
    assert event.data["original"]["id"] == response.id
    assert event.data["response"]["choices"][0]["token_ids"] == stub.token_ids(TEXT)
    assert len(event.data["response"]["choices"][0]["logprobs"]["content"]) == 4


async def test_a_chat_call_of_the_same_messages_leaves_the_same_event(sdk, served, default):
    await sdk.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "two and two"}])
    await sdk.responses.create(model="gpt", input="two and two")

    chat, responses = (event.data for event in await default.events.of_attempt("r1"))
    for key in ("request", "response", "status", "server", "finish_reason", "usage", "asked", "mode"):
        assert responses[key] == chat[key], key


async def test_it_streams_live_and_the_end_waits_for_the_record(sdk, served, default):
    gates = [asyncio.Event() for _ in range(3)]
    served.otherwise = stub.paced(gates)
    stream = await sdk.responses.create(model="gpt", input="two and two", stream=True)
    events = [await anext(stream) for _ in range(5)]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert events[-1].delta == "the "
    assert await default.events.of_attempt("r1") == []

    for gate in gates:
        gate.set()
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.done":
            assert len(await default.events.of_attempt("r1")) == 1
    assert [event.type for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == TEXT
    assert events[-1].response.usage.output_tokens == 4


async def test_its_stream_helper_gathers_text_and_calls(sdk, served):
    served.otherwise = stub.answer("let me add", tool_calls=[CALL], finish_reason="tool_calls", reasoning="two and two")
    async with sdk.responses.stream(model="gpt", input="two and two", tools=[ADD]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()

    reasoning, message, call = final.output
    assert reasoning.content[0].text == "two and two"
    assert message.content[0].text == "let me add"
    assert (call.name, call.call_id, call.arguments) == ("add", "call-1", '{"a": 2, "b": 2}')
    assert served.requests[0]["tools"] == [
        {"type": "function", "function": {key: ADD[key] for key in ("name", "description", "parameters", "strict")}}
    ]
    types = [event.type for event in events]
    assert "response.reasoning_text.delta" in types
    assert types.index("response.function_call_arguments.delta") < types.index("response.function_call_arguments.done")


@pytest.mark.parametrize("by_id", [True, False])
async def test_it_goes_on_after_a_tool_by_id_or_with_all_items_and_the_model_sees_the_same(sdk, served, by_id):
    served.scripts = [stub.answer("let me add", tool_calls=[CALL], finish_reason="tool_calls", reasoning="hm")]
    asked = [{"role": "user", "content": "two and two"}]
    first = await sdk.responses.create(model="gpt", instructions="Old.", input=asked, tools=[ADD])
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "4"}
    more = {"previous_response_id": first.id} if by_id else {}
    history = [] if by_id else [*asked, *(item.model_dump() for item in first.output)]
    second = await sdk.responses.create(model="gpt", instructions="New.", input=[*history, result], tools=[ADD], **more)

    assert second.output_text == TEXT
    assert second.previous_response_id == (first.id if by_id else None)
    assert served.requests[1]["messages"] == [
        {"role": "system", "content": "New."},
        {"role": "user", "content": "two and two"},
        {"role": "assistant", "content": "let me add", "reasoning": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call-1", "content": "4"},
    ]


async def test_it_goes_on_and_reads_back_on_another_replica(sdk, served, settings, log, default):
    ids: list[str] = []
    last: Any = None
    async with serving(settings) as other:
        elsewhere = openai.AsyncOpenAI(base_url=other + proxy("r1"), api_key=await token(log))
        for turn in range(12):
            client = elsewhere if turn % 2 else sdk
            last = await client.responses.create(
                model="gpt", input=f"turn {turn}", previous_response_id=last and last.id
            )
            ids.append(last.id)
        contents = [message["content"] for message in served.requests[-1]["messages"]]
        assert contents == [text for turn in range(12) for text in (f"turn {turn}", TEXT)][:-1]

        branch = await elsewhere.responses.create(model="gpt", input="branch", previous_response_id=ids[0])
        assert [message["content"] for message in served.requests[-1]["messages"]] == ["turn 0", TEXT, "branch"]
        again = await elsewhere.responses.retrieve(last.id)
        assert again.model_dump() == last.model_dump()
        assert (await sdk.responses.retrieve(branch.id)).previous_response_id == ids[0]
        await elsewhere.close()


async def test_a_streamed_response_is_read_back_as_its_last_event_showed_it(sdk, served):
    served.otherwise = stub.answer("", tool_calls=[CALL, CALL | {"id": "call-2"}], finish_reason="tool_calls")
    stream = await sdk.responses.create(model="gpt", input="hi", tools=[ADD], instructions="Add.", stream=True)
    final = [event async for event in stream][-1].response

    assert [item.call_id for item in final.output] == ["call-1", "call-2"]
    assert (await sdk.responses.retrieve(final.id)).model_dump() == final.model_dump()


async def test_an_unknown_previous_response_is_named(sdk, served, default):
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(model="gpt", input="hi", previous_response_id="resp_none")

    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    assert "resp_none" in caught.value.message
    assert served.requests == []
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        await sdk.responses.retrieve("resp_none")
    assert await default.events.of_attempt("r1") == []


async def test_another_attempts_responses_are_not_there(sdk, served, api, url, log):
    response = await sdk.responses.create(model="gpt", input="hi")
    await create(api, "r2")
    for rollout_id, attempt in (("r2", "0"), ("r1", "1")):
        key = await token(log, rollout_id, attempt)
        async with openai.AsyncOpenAI(base_url=url + proxy(rollout_id, attempt=attempt), api_key=key) as other:
            with pytest.raises(openai.NotFoundError):
                await other.responses.retrieve(response.id)
            with pytest.raises(openai.BadRequestError):
                await other.responses.create(model="gpt", input="go on", previous_response_id=response.id)


async def test_a_response_stays_on_record(sdk, served):
    response = await sdk.responses.create(model="gpt", input="hi")

    with pytest.raises(openai.APIStatusError) as caught:
        await sdk.responses.delete(response.id)

    assert caught.value.status_code == 405
    assert (await sdk.responses.retrieve(response.id)).id == response.id


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_cut_is_incomplete(sdk, served, stream):
    served.otherwise = stub.answer(finish_reason="length")
    response = await sdk.responses.create(model="gpt", input="hi", stream=stream)
    if stream:
        events = [event async for event in response]
        assert events[-1].type == "response.incomplete"
        response = events[-1].response

    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    assert response.output_text == TEXT


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [ADD, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [ADD], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"extra_body": {"n": 2}}, "n"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(sdk, served, default, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.responses.create(**{"model": "gpt", "input": "hi"} | more)

    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert served.requests == []
    assert (await default.pause.state()).inflight == 0


async def test_a_schema_is_passed_on_and_its_answer_parsed(sdk, served):
    class Sum(BaseModel):
        value: int

    served.otherwise = stub.answer('{"value": 4}')
    response = await sdk.responses.parse(model="gpt", input="two and two", text_format=Sum)

    assert response.output_parsed == Sum(value=4)
    form = served.requests[0]["response_format"]
    assert (form["type"], form["json_schema"]["name"]) == ("json_schema", "Sum")
    assert form["json_schema"]["schema"]["properties"]["value"]["type"] == "integer"


async def test_a_stream_that_breaks_raises_and_is_not_complete(sdk, served, default):
    chunks = stub.chat_chunks(stub.chat_response({"messages": []}), usage=True)
    served.otherwise = stub.events(*map(stub.orjson.dumps, chunks[:3]), cut=True)
    stream = await sdk.responses.create(model="gpt", input="hi", stream=True)

    async def read() -> None:
        async for event in stream:
            assert event.type != "response.completed"

    with pytest.raises(openai.APIError, match="stream"):
        await read()
    (event,) = await default.events.of_attempt("r1")
    assert event.data["status"] == "error"
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(event.data["original"]["id"])


async def test_a_stream_whose_rollout_ends_is_not_complete(sdk, served, api):
    gates = [asyncio.Event() for _ in range(3)]
    served.otherwise = stub.paced(gates)
    stream = await sdk.responses.create(model="gpt", input="hi", stream=True)
    shown = [(await anext(stream)).type for _ in range(5)]
    assert shown[-1] == "response.output_text.delta"
    await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})
    for gate in gates:
        gate.set()

    async def read() -> None:
        async for event in stream:
            assert event.type != "response.completed"

    with pytest.raises(openai.APIError):
        await read()


async def test_what_upstream_refuses_reaches_the_agent_as_it_was(sdk, served):
    served.otherwise = stub.status(400, {"error": {"message": "max_tokens is too large", "code": 400}})
    with pytest.raises(openai.BadRequestError, match="max_tokens is too large"):
        await sdk.responses.create(model="gpt", input="hi")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_gets_the_response_that_its_first_call_missed(sdk, served, default, stream):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    call = asyncio.create_task(
        sdk.with_options(timeout=0.5, max_retries=1).responses.create(model="gpt", input="hi", stream=stream)
    )
    await asyncio.sleep(0.7)
    gate.set()
    response = await call
    if stream:
        response = [event async for event in response][-1].response

    assert response.output_text == TEXT
    assert len(served.requests) == 1
    recorded = (await default.events.of_attempt("r1"))[0].data
    assert recorded["original"]["id"] == response.id
    following = await sdk.responses.create(model="gpt", input="more", previous_response_id=response.id)
    assert following.previous_response_id == response.id


async def test_it_waits_out_a_pause(sdk, served, api):
    await api.post("/proxy/pause", json={"retry_after_seconds": 1})
    call = asyncio.create_task(sdk.responses.create(model="gpt", input="hi"))
    await asyncio.sleep(0.3)
    await api.post("/proxy/resume")

    assert (await call).output_text == TEXT


async def test_the_synchronous_client_asks_and_streams(api, url, log, served):
    await create(api)
    key = await token(log)

    def talk() -> tuple[str, str, str]:
        with openai.OpenAI(base_url=url + proxy("r1"), api_key=key) as client:
            first = client.responses.create(model="gpt", input="hi")
            with client.responses.stream(model="gpt", input="more", previous_response_id=first.id) as stream:
                text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
                final = stream.get_final_response()
            return first.output_text, text, final.output_text

    assert await asyncio.to_thread(talk) == (TEXT, TEXT, TEXT)
