"""Official clients and Agent Lightning's way of using the API, unmodified."""

from __future__ import annotations

import asyncio
import os
import sys

import openai
import pytest

from leyden.auth import AgentClaims, Authority
from leyden.log import Log
from leyden.variables import agent_variables
from tests.gateway import stub
from tests.gateway.conftest import KEY, create, proxy
from tests.gateway.stub import MODEL, TEXT

MESSAGES = [{"role": "user", "content": "what is two and two"}]
TOOL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


@pytest.fixture
async def sdk(api, url, log: Log):
    """The official client, with an agent's token."""
    await create(api)
    location = await log.locate("r1")
    key = Authority(KEY).mint(AgentClaims("r1", location.nonce, "0"))
    async with openai.AsyncOpenAI(base_url=url + proxy("r1"), api_key=key, max_retries=2) as client:
        yield client


async def test_the_sdk_chats(sdk, served):
    answer = await sdk.chat.completions.create(model="gpt", messages=MESSAGES)

    assert answer.choices[0].message.content == TEXT
    assert answer.usage.completion_tokens == 4


async def test_the_sdk_streams_and_gets_usage_when_it_asks(sdk, served, default):
    plain = await sdk.chat.completions.create(model="gpt", messages=MESSAGES, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in plain])
    options = {"include_usage": True}
    counted = await sdk.chat.completions.create(model="gpt", messages=MESSAGES, stream=True, stream_options=options)
    chunks = [chunk async for chunk in counted]

    assert text == TEXT
    assert chunks[-1].usage.completion_tokens == 4
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert len(await default.events.of_attempt("r1")) == 2


async def test_the_sdk_streams_tool_calls(sdk, served):
    served.otherwise = stub.answer("", tool_calls=[TOOL], finish_reason="tool_calls")
    async with sdk.chat.completions.stream(model="gpt", messages=MESSAGES) as stream:
        final = await stream.get_final_completion()

    call = final.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name, call.function.arguments) == ("call-1", "add", '{"a": 2, "b": 2}')


async def test_the_sdk_completes(sdk, served):
    answer = await sdk.completions.create(model="gpt", prompt="two and two is", logprobs=0)
    streamed = await sdk.completions.create(model="gpt", prompt="two and two is", stream=True)

    assert answer.choices[0].text == TEXT
    assert answer.choices[0].logprobs.token_logprobs == [-0.5] * 4
    assert "".join([chunk.choices[0].text async for chunk in streamed]) == TEXT


async def test_the_sdk_sees_a_broken_stream_as_an_error(sdk, served):
    chunk = b'{"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "the"}}]}'
    served.otherwise = stub.events(chunk, cut=True)
    stream = await sdk.chat.completions.create(model="gpt", messages=MESSAGES, stream=True)

    with pytest.raises(openai.APIError, match="stream"):
        async for _ in stream:
            pass


async def test_the_sdk_shows_what_was_wrong(sdk, served):
    served.otherwise = stub.status(400, {"error": {"message": "max_tokens is too large", "code": 400}})
    with pytest.raises(openai.BadRequestError, match="max_tokens is too large"):
        await sdk.chat.completions.create(model="gpt", messages=MESSAGES)

    served.otherwise = stub.raw(b"<html>")
    with pytest.raises(openai.InternalServerError, match="not JSON"):
        await sdk.with_options(max_retries=0).chat.completions.create(model="gpt", messages=MESSAGES)


async def test_the_sdk_waits_out_a_pause(sdk, served, default, api):
    await api.post("/proxy/pause", json={"retry_after_seconds": 1})
    call = asyncio.create_task(sdk.chat.completions.create(model="gpt", messages=MESSAGES))
    await asyncio.sleep(0.3)
    await api.post("/proxy/resume")

    assert (await call).choices[0].message.content == TEXT


async def test_a_retry_of_the_sdk_gets_the_answer_that_its_first_call_missed(sdk, served, default):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    call = asyncio.create_task(
        sdk.with_options(timeout=0.5, max_retries=1).chat.completions.create(model="gpt", messages=MESSAGES)
    )
    await asyncio.sleep(0.7)
    gate.set()

    assert (await call).choices[0].message.content == TEXT
    assert len(served.requests) == 1


async def test_the_sdk_lists_models(sdk, served):
    assert [model.id async for model in await sdk.models.list()] == [MODEL]


AGENT = """
import os, httpx, openai

class Agent:
    def run(self):
        client = openai.OpenAI(base_url=os.environ["AGL_OPENAI_BASE_URL"], api_key=os.environ["AGL_KEY"])
        answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "two and two"}])
        headers = {"Authorization": "Bearer " + os.environ["AGL_KEY"]}
        body = {"event_type": "reward", "data": {"value": float("four" in answer.choices[0].message.content)}}
        httpx.post(os.environ["AGL_EVENT_URL"], json=body, headers=headers).raise_for_status()

Agent().run()
"""


@pytest.mark.parametrize("credential", ["admin", "token"])
async def test_an_agent_and_its_controller_written_for_agent_lightning_run_unchanged(
    api, served, url, log, tmp_path, credential
):
    """Enqueue, list, spawn first and patch later, poll `terminal`, read triplets: what its parts do over HTTP."""
    (made,) = (await api.post("/api/rollouts", json=[{"input": {"data_id": "d1"}, "is_train": True}])).json()
    rollout_id = made["rollout_id"]
    (queued,) = (await api.get("/api/rollouts", params={"state_in": ["queuing"]})).json()
    assert queued["rollout_id"] == rollout_id
    nonce = (await log.locate(rollout_id)).nonce
    key = KEY if credential == "admin" else Authority(KEY).mint(AgentClaims(rollout_id, nonce, "0"))
    (tmp_path / "agent.py").write_text(AGENT)

    environment = os.environ | agent_variables(url, rollout_id, "0", is_train=True, key=key)
    agent = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "agent.py"), env=environment)
    assert await agent.wait() == 0
    for status in ({"state": "running", "last_attempt_id": "0"}, {"state": "succeeded"}):
        assert (await api.patch(f"/api/rollouts/{rollout_id}", json={"status": status})).status_code == 200

    page = (await api.get("/api/rollouts/terminal", params={"after": 0})).json()
    assert page["items"] == [{"rollout_id": rollout_id, "state": "succeeded", "data_id": "d1", "is_train": True}]
    events = (await api.get(f"/api/rollouts/{rollout_id}/events", params={"format": "triplet"})).json()
    assert [event["event_type"] for event in events] == ["model_request", "reward"]
    call, reward = (event["data"] for event in events)
    assert call["response_token_ids"] == stub.token_ids(TEXT)
    assert len(call["response_log_probs"]) == 4
    assert call["server"] == {"model": MODEL, "version": 7}
    assert reward == {"value": 1.0}
    assert (await api.delete(f"/api/rollouts/{rollout_id}")).status_code == 204
