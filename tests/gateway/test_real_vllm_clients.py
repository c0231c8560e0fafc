"""Agents' clients, unmodified, before a real vLLM: what is on record are the tokens of what each of them saw.

The model is random, so tools are called because they must be: by `tool_choice` and a strict schema, or by a regular
expression that vLLM holds the answer to.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import anthropic
import httpx
import openai
import pytest

from leyden.auth import AgentClaims, Authority
from leyden.log import Log, RunLog
from leyden.triplet import model_calls
from leyden_gateway.settings import GatewaySettings
from tests.gateway.conftest import KEY, proxy

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

QUESTION = "what is two and two"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "enum": [1, 2, 3]}, "b": {"type": "integer", "enum": [1, 2, 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", **FUNCTION}]
ANTHROPIC_TOOLS: Any = [
    {"type": "custom", "name": "add", "description": "Adds.", "input_schema": SCHEMA, "strict": True}
]

_ONE_CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"a": [1-3], "b": [1-3]\}\}\n</tool_call>'
TWO_CALLS: dict[str, Any] = {"structured_outputs": {"regex": f"[a-z]{{3,9}}\\.{_ONE_CALL}\n{_ONE_CALL}"}}
"""Makes vLLM sample a few letters and two calls of tools."""

TOKENS = 300
"""At most so many a call: whitespace between a strict schema's tokens is free."""

SEED: dict[str, Any] = {"seed": 11}
ENDING: dict[str, Any] = {"extra_body": {"structured_outputs": {"regex": "[ -~]{3,9}"}} | SEED}
"""For clients' helpers that want an answer to end by itself."""


@dataclass
class Seen:
    """What a client showed of one answer."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Name and arguments of each call."""


@dataclass(frozen=True)
class Attempt:
    """What an agent is told of where it works."""

    openai_url: str
    anthropic_url: str
    key: str


def call(name: str | None, arguments: str | None) -> tuple[str, Any]:
    return name or "", json.loads(arguments or "null")


def chat_message(message: Any) -> Seen:
    """What OpenAI's message, or LiteLLM's, says."""
    calls = [call(each.function.name, each.function.arguments) for each in message.tool_calls or []]
    return Seen(message.content or "", calls)


def chat_chunks(chunks: Iterable[Any]) -> Seen:
    """What the chunks of a chat completion say, put together as agents do."""
    text, calls = "", {}
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                made = calls.setdefault(part.index, ["", ""])
                made[0] += part.function.name or ""
                made[1] += part.function.arguments or ""
    return Seen(text, [call(*calls[index]) for index in sorted(calls)])


def response(answer: Any) -> Seen:
    """What a Response says."""
    calls = [call(item.name, item.arguments) for item in answer.output if item.type == "function_call"]
    return Seen(answer.output_text, calls)


def message(answer: Any) -> Seen:
    """What a Message says."""
    text = "".join(block.text for block in answer.content if block.type == "text")
    return Seen(text, [(block.name, block.input) for block in answer.content if block.type == "tool_use"])


def _chat(tools: bool) -> dict[str, Any]:
    more = {"tools": CHAT_TOOLS, "extra_body": TWO_CALLS} if tools else {}
    return {"model": "gpt", "messages": MESSAGES, "max_tokens": TOKENS if tools else 12, **SEED, **more}


def _responses(tools: bool) -> dict[str, Any]:
    more = {"tools": RESPONSES_TOOLS, "extra_body": TWO_CALLS | SEED} if tools else {"extra_body": SEED}
    return {"model": "gpt", "input": QUESTION, "max_output_tokens": TOKENS if tools else 12, **more}


def _messages(tools: bool) -> dict[str, Any]:
    forced = {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "add"}} if tools else {}
    asked = {"model": "claude", "messages": MESSAGES, "max_tokens": TOKENS if tools else 12}
    return {**asked, "extra_body": SEED, **forced}


async def openai_chat(at: Attempt, tools: bool, stream: bool) -> Seen:
    async with openai.AsyncOpenAI(base_url=at.openai_url, api_key=at.key) as client:
        if not stream:
            return chat_message((await client.chat.completions.create(**_chat(tools))).choices[0].message)
        chunks = await client.chat.completions.create(**_chat(tools), stream=True)
        return chat_chunks([chunk async for chunk in chunks])


async def openai_chat_helper(at: Attempt, tools: bool, stream: bool) -> Seen:
    asked = ENDING | _chat(tools)
    async with openai.AsyncOpenAI(base_url=at.openai_url, api_key=at.key) as client:
        if not stream:
            return chat_message((await client.chat.completions.parse(**asked)).choices[0].message)
        async with client.chat.completions.stream(**asked) as events:
            return chat_message((await events.get_final_completion()).choices[0].message)


async def openai_chat_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    def agent() -> Seen:
        with openai.OpenAI(base_url=at.openai_url, api_key=at.key) as client:
            if not stream:
                return chat_message(client.chat.completions.create(**_chat(tools)).choices[0].message)
            return chat_chunks(client.chat.completions.create(**_chat(tools), stream=True))

    return await asyncio.to_thread(agent)


async def openai_completions(at: Attempt, tools: bool, stream: bool) -> Seen:
    asked: Any = {"model": "gpt", "prompt": QUESTION, "max_tokens": 12, **SEED}
    async with openai.AsyncOpenAI(base_url=at.openai_url, api_key=at.key) as client:
        if not stream:
            return Seen((await client.completions.create(**asked)).choices[0].text)
        chunks = await client.completions.create(**asked, stream=True)
        return Seen("".join([choice.text async for chunk in chunks for choice in chunk.choices]))


async def openai_completions_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    asked: Any = {"model": "gpt", "prompt": QUESTION, "max_tokens": 12, **SEED}

    def agent() -> Seen:
        with openai.OpenAI(base_url=at.openai_url, api_key=at.key) as client:
            if not stream:
                return Seen(client.completions.create(**asked).choices[0].text)
            chunks = client.completions.create(**asked, stream=True)
            return Seen("".join(choice.text for chunk in chunks for choice in chunk.choices))

    return await asyncio.to_thread(agent)


async def openai_responses(at: Attempt, tools: bool, stream: bool) -> Seen:
    async with openai.AsyncOpenAI(base_url=at.openai_url, api_key=at.key) as client:
        if not stream:
            return response(await client.responses.create(**_responses(tools)))
        asked, text = (_responses(tools) if tools else _responses(tools) | ENDING), ""
        async with client.responses.stream(**asked) as events:
            async for event in events:
                text += event.delta if event.type == "response.output_text.delta" else ""
            whole = response(await events.get_final_response())
        assert text == whole.text
        return whole


async def openai_responses_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    def agent() -> Seen:
        with openai.OpenAI(base_url=at.openai_url, api_key=at.key) as client:
            if not stream:
                return response(client.responses.create(**_responses(tools)))
            events: Any = client.responses.create(**_responses(tools), stream=True)
            return response(list(events)[-1].response)

    return await asyncio.to_thread(agent)


async def anthropic_messages(at: Attempt, tools: bool, stream: bool) -> Seen:
    async with anthropic.AsyncAnthropic(base_url=at.anthropic_url, api_key=at.key) as client:
        if not stream:
            return message(await client.messages.create(**_messages(tools)))
        async with client.messages.stream(**_messages(tools)) as events:
            text = "".join([piece async for piece in events.text_stream])
            whole = message(await events.get_final_message())
        assert text == whole.text
        return whole


async def anthropic_messages_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    def agent() -> Seen:
        with anthropic.Anthropic(base_url=at.anthropic_url, api_key=at.key) as client:
            if not stream:
                return message(client.messages.create(**_messages(tools)))
            with client.messages.stream(**_messages(tools)) as events:
                return message(events.get_final_message())

    return await asyncio.to_thread(agent)


async def openai_agents(at: Attempt, tools: bool, stream: bool, *, api: str = "responses") -> Seen:
    """The first turn calls a tool because it must; the second, which is free, is the answer."""
    import agents

    made: list[tuple[str, Any]] = []

    @agents.function_tool
    def add(a: Literal[1, 2, 3], b: Literal[1, 2, 3]) -> int:
        """Adds."""
        made.append(("add", {"a": a, "b": b}))
        return a + b

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=at.openai_url, api_key=at.key) as client:
        kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
        settings = agents.ModelSettings(
            max_tokens=200, tool_choice="add" if tools else None, extra_body=SEED, include_usage=True
        )
        agent = agents.Agent(
            name="adder", instructions="Add.", model=kind("gpt", client), model_settings=settings, tools=[add]
        )
        if not stream:
            return Seen((await agents.Runner.run(agent, QUESTION)).final_output, made)
        result = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
        return Seen(result.final_output, made)


async def openai_agents_chat(at: Attempt, tools: bool, stream: bool) -> Seen:
    return await openai_agents(at, tools, stream, api="chat")


async def langchain(at: Attempt, tools: bool, stream: bool, *, responses: bool = False) -> Seen:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    model: Any = ChatOpenAI(
        model="gpt",
        base_url=at.openai_url,
        api_key=SecretStr(at.key),
        use_responses_api=responses,
        max_tokens=TOKENS if tools else 12,  # pyright: ignore[reportCallIssue]
        extra_body=(TWO_CALLS if tools else {}) | SEED,
    )
    if tools:
        model = model.bind_tools(CHAT_TOOLS)
    if not stream:
        said = await model.ainvoke(QUESTION)
    else:
        pieces = [piece async for piece in model.astream(QUESTION)]
        said = pieces[0]
        for piece in pieces[1:]:
            said += piece
    return Seen(said.text, [(each["name"], each["args"]) for each in said.tool_calls])


async def langchain_responses(at: Attempt, tools: bool, stream: bool) -> Seen:
    return await langchain(at, tools, stream, responses=True)


async def langchain_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    return await asyncio.to_thread(lambda: asyncio.run(langchain(at, tools, stream)))


async def litellm_chat(at: Attempt, tools: bool, stream: bool) -> Seen:
    import litellm

    asked = _chat(tools) | {"model": "openai/gpt", "api_base": at.openai_url, "api_key": at.key, "stream": stream}
    answer: Any = await litellm.acompletion(**asked)
    return chat_chunks([chunk async for chunk in answer]) if stream else chat_message(answer.choices[0].message)


async def litellm_chat_sync(at: Attempt, tools: bool, stream: bool) -> Seen:
    import litellm

    asked = _chat(tools) | {"model": "openai/gpt", "api_base": at.openai_url, "api_key": at.key, "stream": stream}

    def agent() -> Seen:
        answer: Any = litellm.completion(**asked)
        return chat_chunks(answer) if stream else chat_message(answer.choices[0].message)

    return await asyncio.to_thread(agent)


async def litellm_anthropic(at: Attempt, tools: bool, stream: bool) -> Seen:
    """LiteLLM keeps a tool's `strict` only as Anthropic spells it."""
    import litellm

    forced = {"tool_choice": {"type": "function", "function": {"name": "add"}}} if tools else {}
    asked = {k: v for k, v in (_messages(tools) | forced).items() if k != "extra_body"}
    more = {"model": "anthropic/claude", "api_base": at.anthropic_url, "api_key": at.key, "stream": stream}
    answer: Any = await litellm.acompletion(**(asked | more), **SEED, allowed_openai_params=["seed"])
    return chat_chunks([chunk async for chunk in answer]) if stream else chat_message(answer.choices[0].message)


async def litellm_responses(at: Attempt, tools: bool, stream: bool) -> Seen:
    import litellm

    asked = _responses(tools) | {"model": "openai/gpt", "api_base": at.openai_url, "api_key": at.key}
    answer: Any = await litellm.aresponses(**asked, stream=stream)
    if not stream:
        return response(answer)
    return response([event async for event in answer][-1].response)


Client = Callable[[Attempt, bool, bool], Awaitable[Seen]]
PLAIN: list[Client] = [openai_completions, openai_completions_sync]
"""Clients of completions, which know no tools."""
CLIENTS: list[Client] = [
    openai_chat,
    openai_chat_helper,
    openai_chat_sync,
    openai_responses,
    openai_responses_sync,
    anthropic_messages,
    anthropic_messages_sync,
    openai_agents,
    openai_agents_chat,
    langchain,
    langchain_responses,
    langchain_sync,
    litellm_chat,
    litellm_chat_sync,
    litellm_anthropic,
    litellm_responses,
]


@pytest.fixture
def settings(settings: GatewaySettings) -> GatewaySettings:
    """A model server that computes on a busy machine's CPU takes its time."""
    return settings.model_copy(update={"upstream_timeout_seconds": 60})


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteLLM and LangSmith ask the network for things that no call needs."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


@pytest.fixture
async def attempt(api: httpx.AsyncClient, url: str, seeded: RunLog, log: Log) -> Attempt:
    """Attempt 0 of a rollout, with its own token."""
    await api.post("/api/runs/seeded/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    key = Authority(KEY).mint(AgentClaims("r1", (await log.locate("r1")).nonce, "0"))
    base = url + proxy("r1")
    return Attempt(base, f"{base.removesuffix('/openai/v1')}/anthropic", key)


async def sampled(run: RunLog, vllm: str) -> list[Seen]:
    """What each recorded call's token ids say, once each has its log prob."""
    said = []
    for triplet in model_calls(await run.events.of_attempt("r1")):
        ids, log_probs = triplet["response_token_ids"], triplet["response_log_probs"]
        assert (triplet["status"], triplet["delivered"]) == ("ok", True)
        assert len(ids) == len(log_probs) > 0
        assert triplet["prompt_token_ids"]
        said.append(_read(await decoded(vllm, ids)))
    return said


async def decoded(vllm: str, ids: list[int]) -> str:
    """The text of token ids, by the model's own tokenizer, without the token that ends it."""
    async with httpx.AsyncClient(base_url=vllm.removesuffix("/v1")) as client:
        answer = await client.post("/detokenize", json={"tokens": ids})
    return answer.json()["prompt"].removesuffix("<end>")


def _read(text: str) -> Seen:
    """Text and calls of what a model with Hermes' way of calling tools said."""
    calls = [json.loads(each) for each in re.findall("<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
    return Seen(text.partition("<tool_call>")[0], [(each["name"], each["arguments"]) for each in calls])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", PLAIN + CLIENTS, ids=lambda client: client.__name__)
async def test_what_a_client_saw_are_the_tokens_on_record(attempt, seeded, vllm, client, stream):
    seen = await client(attempt, False, stream)

    assert [seen] == await sampled(seeded, vllm)
    assert seen.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
async def test_the_calls_that_a_client_saw_are_the_tokens_on_record(attempt, seeded, vllm, client, stream):
    seen = await client(attempt, True, stream)

    said = await sampled(seeded, vllm)
    assert seen.calls == [made for turn in said for made in turn.calls]
    assert {name for name, _ in seen.calls} == {"add"}
    assert seen.text == "".join(turn.text for turn in said)
