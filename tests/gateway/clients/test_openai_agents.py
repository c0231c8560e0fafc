"""An agent of the OpenAI Agents SDK works through the gateway, unmodified."""

from __future__ import annotations

import agents
import openai
import pytest

from leyden.auth import AgentClaims, Authority
from tests.gateway import stub
from tests.gateway.conftest import KEY, create, proxy
from tests.gateway.stub import TEXT

CALLS = [
    {"id": f"call-{b}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": 2, "b": {b}}}'}}
    for b in (2, 3)
]


@pytest.fixture
async def client(api, url, log):
    """OpenAI's client, with an agent's token."""
    await create(api)
    key = Authority(KEY).mint(AgentClaims("r1", (await log.locate("r1")).nonce, "0"))
    async with openai.AsyncOpenAI(base_url=url + proxy("r1"), api_key=key) as client:
        yield client


@pytest.fixture
def adder(client):
    """An agent with a tool, and what its tool was asked."""
    asked: list[tuple[int, int]] = []

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Adds."""
        asked.append((a, b))
        return a + b

    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel("gpt", client)
    return agents.Agent(name="adder", instructions="Add.", tools=[add], model=model), asked


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_it_calls_its_tools_and_answers(adder, served, default, streamed, by_id):
    agent, asked = adder
    served.scripts = [stub.answer("let me add", tool_calls=CALLS, finish_reason="tool_calls", reasoning="hm")]

    run = {"starting_agent": agent, "input": "two and two", "auto_previous_response_id": by_id}
    if streamed:
        result = agents.Runner.run_streamed(**run)
        kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
        assert kinds.count("response.completed") == 2
    else:
        result = await agents.Runner.run(**run)

    assert result.final_output == TEXT
    assert sorted(asked) == [(2, 2), (2, 3)]
    events = [event.data for event in await default.events.of_attempt("r1")]
    assert [event["path"] for event in events] == ["openai/v1/responses"] * 2
    messages = events[1]["request"]["messages"]
    assert messages[0] == {"role": "system", "content": "Add."}
    assert messages[2] == {"role": "assistant", "content": "let me add", "reasoning": "hm", "tool_calls": CALLS}
    assert [message["content"] for message in messages[3:]] == ["4", "5"]
    assert bool(events[1]["original"].get("previous_response_id")) == by_id


async def test_a_conversation_goes_on(adder, served):
    agent, _ = adder
    first = await agents.Runner.run(agent, "one")
    second = await agents.Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "two"}])

    assert second.final_output == TEXT
    assert [message["content"] for message in served.requests[1]["messages"]] == ["Add.", "one", TEXT, "two"]
