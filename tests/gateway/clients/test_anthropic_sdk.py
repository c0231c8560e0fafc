"""The official Anthropic client, unmodified."""

from __future__ import annotations

import asyncio
import os
import sys

import anthropic
import pytest
from anthropic.types import MessageParam

from leyden.auth import AgentClaims, Authority
from leyden.log import Log
from leyden.triplet import to_triplet
from leyden.variables import agent_variables
from tests.gateway import stub
from tests.gateway.conftest import KEY, create
from tests.gateway.stub import MODEL, TEXT
from tests.gateway.test_anthropic_messages import ADD, CALL, base
from tests.gateway.test_calls import calls_of

MESSAGES: list[MessageParam] = [{"role": "user", "content": "what is two and two"}]


@pytest.fixture
async def key(api, log: Log) -> str:
    """An agent's token for attempt 0 of rollout r1."""
    await create(api)
    return Authority(KEY).mint(AgentClaims("r1", (await log.locate("r1")).nonce, "0"))


@pytest.fixture
async def sdk(key, url):
    """The official client, with an agent's token."""
    async with anthropic.AsyncAnthropic(base_url=url + base(), api_key=key, max_retries=2) as client:
        yield client


async def test_the_sdk_gets_a_message(sdk, served, default):
    message = await sdk.messages.create(model="claude", max_tokens=64, system="You add.", messages=MESSAGES)

    assert message.content[0].text == TEXT
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 4)
    (call,) = await calls_of(default)
    triplet = to_triplet(call)
    assert len(triplet["response_token_ids"]) == len(triplet["response_log_probs"]) == 4


async def test_the_sdk_gets_a_message_without_waiting_on_a_loop(key, url, served):
    def agent() -> tuple[str, str]:
        with anthropic.Anthropic(base_url=url + base(), api_key=key) as client:
            message = client.messages.create(model="claude", max_tokens=64, messages=MESSAGES)
            with client.messages.stream(model="claude", max_tokens=64, messages=MESSAGES) as stream:
                return message.content[0].text, "".join(stream.text_stream)  # pyright: ignore[reportAttributeAccessIssue]

    assert await asyncio.to_thread(agent) == (TEXT, TEXT)


async def test_the_sdk_streams_to_the_message_that_it_gets_unstreamed(sdk, served):
    served.otherwise = stub.answer(reasoning="let me see", tool_calls=[CALL], finish_reason="tool_calls")
    whole = await sdk.messages.create(model="claude", max_tokens=64, messages=MESSAGES, tools=[ADD])

    async with sdk.messages.stream(model="claude", max_tokens=64, messages=MESSAGES, tools=[ADD]) as stream:
        kinds = {event.type async for event in stream}
        streamed = await stream.get_final_message()

    assert streamed.model_dump(exclude_none=True) == whole.model_dump(exclude_none=True)
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use"]
    assert {"thinking", "text", "input_json", "message_stop"} <= kinds


async def test_the_sdk_streams_raw_events(sdk, served):
    stream = await sdk.messages.create(model="claude", max_tokens=64, messages=MESSAGES, stream=True)

    texts = [event.delta.text async for event in stream if event.type == "content_block_delta"]
    assert "".join(texts) == TEXT


async def test_the_sdk_runs_tools_and_what_they_gave_goes_back_to_the_model(sdk, served):
    served.scripts = [stub.answer("", tool_calls=[CALL], finish_reason="tool_calls")]
    first = await sdk.messages.create(model="claude", max_tokens=64, messages=MESSAGES, tools=[ADD])
    (use,) = first.content
    result = {"type": "tool_result", "tool_use_id": use.id, "content": str(use.input["a"] + use.input["b"])}
    turns = [*MESSAGES, first.to_param(), {"role": "user", "content": [result]}]

    last = await sdk.messages.create(model="claude", max_tokens=64, messages=turns, tools=[ADD])

    assert last.content[0].text == TEXT
    assert served.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call-1", "content": "4"},
    ]


async def test_the_sdks_own_tool_loop_runs(sdk, served):
    served.scripts = [stub.answer("", tool_calls=[CALL], finish_reason="tool_calls")]

    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"{a + b}"

    runner = sdk.beta.messages.tool_runner(model="claude", max_tokens=64, messages=MESSAGES, tools=[add])
    last = await runner.until_done()

    assert last.content[0].text == TEXT
    # The loop first asks the provider to keep the conversation, and goes on without when it is told that it can't.
    assert [sent["messages"][-1]["role"] for sent in served.requests] == ["user", "tool"]
    assert served.requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call-1", "content": "4"}


async def test_the_sdk_counts_tokens_and_lists_models(sdk, served, default):
    count = await sdk.messages.count_tokens(model="claude", messages=MESSAGES, system="You add.", tools=[ADD])
    models = [model.id async for model in sdk.models.list()]
    model = await sdk.models.retrieve(MODEL)

    assert count.input_tokens == len(stub.prompt_ids(served.requests[0]))
    assert models == [model.id] == [MODEL]
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await sdk.models.retrieve("claude")
    assert await calls_of(default) == []


async def test_the_sdk_shows_what_was_wrong(sdk, served):
    with pytest.raises(anthropic.BadRequestError, match="mcp_servers") as refused:
        await sdk.messages.create(model="c", max_tokens=1, messages=MESSAGES, extra_body={"mcp_servers": []})
    assert refused.value.body == {
        "detail": "mcp_servers: Extra inputs are not permitted",
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "mcp_servers: Extra inputs are not permitted"},
    }
    served.otherwise = stub.status(400, {"error": {"message": "max_tokens is too large", "code": 400}})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is too large"):
        await sdk.messages.create(model="claude", max_tokens=64, messages=MESSAGES)
    with pytest.raises(anthropic.AuthenticationError):
        await sdk.with_options(api_key="wrong").messages.create(model="claude", max_tokens=64, messages=MESSAGES)


async def test_the_sdk_sees_a_broken_stream_as_an_error(sdk, served):
    chunk = b'{"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "the"}}]}'
    served.otherwise = stub.events(chunk, cut=True)

    async with sdk.messages.stream(model="claude", max_tokens=64, messages=MESSAGES) as stream:
        with pytest.raises(anthropic.APIStatusError, match="stream"):
            await stream.get_final_message()


async def test_the_sdk_waits_out_a_pause(sdk, served, api):
    await api.post("/proxy/pause", json={"retry_after_seconds": 1})
    call = asyncio.create_task(sdk.messages.create(model="claude", max_tokens=64, messages=MESSAGES))
    await asyncio.sleep(0.3)
    await api.post("/proxy/resume")

    assert (await call).content[0].text == TEXT


async def test_a_retry_of_the_sdk_gets_the_answer_that_its_first_call_missed(sdk, served):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    call = asyncio.create_task(
        sdk.with_options(timeout=0.5, max_retries=1).messages.create(model="claude", max_tokens=9, messages=MESSAGES)
    )
    await asyncio.sleep(0.7)
    gate.set()

    assert (await call).content[0].text == TEXT
    assert len(served.requests) == 1


AGENT = """
import anthropic

message = anthropic.Anthropic().messages.create(
    model="claude", max_tokens=64, messages=[{"role": "user", "content": "what is two and two"}]
)
assert message.content[0].text == "the answer is four"
"""


async def test_a_program_that_knows_only_the_providers_variables_runs_unchanged(key, url, served, default, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)

    environment = os.environ | agent_variables(url, "r1", "0", is_train=True, key=key)
    agent = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "agent.py"), env=environment)

    assert await agent.wait() == 0
    assert len(await calls_of(default)) == 1
