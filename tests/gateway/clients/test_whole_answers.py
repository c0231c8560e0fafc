"""An answer with everything in it, as each provider's official client shows it, streamed and not: field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import anthropic
import openai
import pytest
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from leyden_gateway.protocols import PROTOCOLS, AgentError
from leyden_gateway.protocols.responses.request import to_chat
from tests.gateway import stub
from tests.gateway.conftest import KEY, create, proxy

QUESTION = "what are two and two, and two and three"
IMAGE = "iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CALLS = [
    {"id": f"call-{b}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": 2, "b": {b}}}'}}
    for b in (2, 3)
]
USAGE = {
    "prompt_tokens": 50,
    "completion_tokens": 9,
    "total_tokens": 59,
    "prompt_tokens_details": {"cached_tokens": 32},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


@pytest.fixture
def everything(served):
    """A model server that thinks, speaks, and calls two tools at once; it cached most of the prompt."""
    served.otherwise = stub.answer(
        "let me add",
        reasoning="two sums",
        tool_calls=CALLS,
        finish_reason="tool_calls",
        change=lambda response: response.update(usage=USAGE),
    )
    return served


@pytest.fixture
async def client(api, url):
    await create(api)
    async with openai.AsyncOpenAI(base_url=url + proxy("r1"), api_key=KEY) as client:
        yield client


@pytest.fixture
async def claude(api, url):
    await create(api)
    base = f"{url}{proxy('r1').removesuffix('/openai/v1')}/anthropic"
    async with anthropic.AsyncAnthropic(base_url=base, api_key=KEY) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_completion(client, everything, stream):
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "tools": tools}
    if stream:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            answer = await events.get_final_completion()
    else:
        answer = await client.chat.completions.create(**asked)

    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.role, choice.message.content) == (
        "tool_calls",
        "assistant",
        "let me add",
    )
    assert choice.message.reasoning == "two sums"
    calls = [(call.id, call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [(call["id"], "function", "add", call["function"]["arguments"]) for call in CALLS]
    assert answer.usage.to_dict() == USAGE
    assert (answer.id, answer.object, answer.model) == ("chatcmpl-1", "chat.completion", stub.MODEL)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response(client, everything, stream):
    asked: Any = {
        "model": "m",
        "instructions": "Add.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": QUESTION},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}", "detail": "low"},
                ],
            }
        ],
        "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}],
        "max_output_tokens": 64,
        "metadata": {"k": "v"},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
    }
    if stream:
        async with client.responses.stream(**asked) as events:
            kinds = [event.type async for event in events]
            answer = await events.get_final_response()
        assert kinds.count("response.function_call_arguments.done") == 2
        assert kinds[-1] == "response.completed"
    else:
        answer = await client.responses.create(**asked)

    thought, said, *calls = answer.output
    assert (thought.type, [part.text for part in thought.content]) == ("reasoning", ["two sums"])
    assert (said.type, said.role, said.status, said.content[0].text) == (
        "message",
        "assistant",
        "completed",
        "let me add",
    )
    assert [(call.type, call.status, call.call_id, call.name, call.arguments) for call in calls] == [
        ("function_call", "completed", call["id"], "add", call["function"]["arguments"]) for call in CALLS
    ]
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert (answer.instructions, answer.max_output_tokens, answer.metadata) == ("Add.", 64, {"k": "v"})
    assert (answer.reasoning.effort, answer.tool_choice, answer.parallel_tool_calls) == ("low", "auto", True)
    assert [tool.name for tool in answer.tools] == ["add"]
    counted = answer.usage
    assert (counted.input_tokens, counted.output_tokens, counted.total_tokens) == (50, 9, 59)
    assert counted.input_tokens_details.cached_tokens == 32
    assert counted.output_tokens_details.reasoning_tokens == 3
    (body,) = everything.requests
    assert body["messages"] == [
        {"role": "system", "content": "Add."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": QUESTION},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}", "detail": "low"}},
            ],
        },
    ]
    assert (body["reasoning_effort"], body["max_completion_tokens"], body["tool_choice"]) == ("low", 64, "auto")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_message(claude, everything, stream):
    asked: Any = {
        "model": "m",
        "max_tokens": 64,
        "system": [{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
                    {"type": "text", "text": QUESTION},
                ],
            }
        ],
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    if stream:
        async with claude.messages.stream(**asked) as events:
            answer = await events.get_final_message()
    else:
        answer = await claude.messages.create(**asked)

    thought, said, *calls = answer.content
    assert (thought.type, thought.thinking, said.type, said.text) == ("thinking", "two sums", "text", "let me add")
    assert [(call.type, call.id, call.name, call.input) for call in calls] == [
        ("tool_use", "call-2", "add", {"a": 2, "b": 2}),
        ("tool_use", "call-3", "add", {"a": 2, "b": 3}),
    ]
    assert (answer.stop_reason, answer.stop_sequence, answer.role, answer.type) == (
        "tool_use",
        None,
        "assistant",
        "message",
    )
    counted = answer.usage
    assert (counted.input_tokens, counted.cache_read_input_tokens, counted.output_tokens) == (18, 32, 9)
    (body,) = everything.requests
    assert body["messages"] == [
        {"role": "system", "content": "Add."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
                {"type": "text", "text": QUESTION},
            ],
        },
    ]
    assert (body["stop"], body["max_tokens"], body["tool_choice"]) == (["END"], 64, "auto")
    assert body["chat_template_kwargs"] == {"enable_thinking": True}


CHATS_OWN = {*get_type_hints(CompletionCreateParamsNonStreaming)}
THING = {"any": "thing"}


def upstream_names(translate: Callable[[], dict[str, Any]], name: str) -> set[str]:
    """The names that go upstream; none if the parameter is refused by its name."""
    try:
        return set(translate())
    except AgentError as refused:
        named = (refused.param or str(refused)).startswith(name)
        return set() if named else {f"refused without its name: {refused}"}


@pytest.mark.parametrize("name", sorted(get_type_hints(ResponseCreateParamsNonStreaming)))
def test_every_parameter_of_responses_has_its_place(name):
    """None goes upstream under a name that chat completions does not know."""
    asked = {"model": "m", "input": "hi", name: THING}

    assert upstream_names(lambda: to_chat(asked, []), name) <= CHATS_OWN


@pytest.mark.parametrize("name", sorted(get_type_hints(MessageCreateParamsNonStreaming)))
def test_every_parameter_of_messages_has_its_place(name):
    asked = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}], name: THING}

    assert upstream_names(lambda: PROTOCOLS["anthropic/v1/messages"].upstream_body(asked), name) <= CHATS_OWN
