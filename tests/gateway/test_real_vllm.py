"""The gateway before a real vLLM: what a stub can only imitate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from leyden.log import RunLog
from leyden.triplet import to_triplet
from leyden_gateway.settings import GatewaySettings
from tests.gateway.conftest import KEY, proxy

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MESSAGES: Any = [{"role": "user", "content": "what is two and two"}]


@pytest.fixture
def settings(settings: GatewaySettings) -> GatewaySettings:
    """A model server that computes on a busy machine's CPU takes its time."""
    return settings.model_copy(update={"upstream_timeout_seconds": 60})


@pytest.fixture
async def sdk(api: httpx.AsyncClient, url: str, seeded: RunLog) -> AsyncIterator[openai.AsyncOpenAI]:
    await api.post("/api/runs/seeded/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    async with openai.AsyncOpenAI(base_url=url + proxy("r1"), api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(api: httpx.AsyncClient, url: str, seeded: RunLog) -> AsyncIterator[anthropic.AsyncAnthropic]:
    await api.post("/api/runs/seeded/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    base = f"{url}{proxy('r1').removesuffix('/openai/v1')}/anthropic"
    async with anthropic.AsyncAnthropic(base_url=base, api_key=KEY, max_retries=0) as client:
        yield client


async def decoded(vllm: str, model: str, ids: list[int]) -> str:
    """The text of token ids, by vLLM itself."""
    async with httpx.AsyncClient(base_url=vllm.removesuffix("/v1")) as client:
        answer = await client.post("/detokenize", json={"model": model, "tokens": ids})
    return answer.json()["prompt"]


def comparable(response: Any) -> Any:
    """Without what differs from call to call, and without nulls, which streams leave out; floats to four places."""
    if isinstance(response, float):
        return round(response, 4)
    if isinstance(response, dict):
        return {key: comparable(value) for key, value in response.items() if value is not None and key not in _OWN}
    return [comparable(value) for value in response] if isinstance(response, list) else response


_OWN = {"id", "created"}


@pytest.mark.parametrize("n", [1, 2])
async def test_a_streamed_chat_is_recorded_like_the_unstreamed_one(sdk, seeded, vllm, n):
    plain = await sdk.chat.completions.create(model="any", messages=MESSAGES, max_tokens=12, seed=5, n=n)
    stream = await sdk.chat.completions.create(model="any", messages=MESSAGES, max_tokens=12, seed=5, n=n, stream=True)
    texts = [""] * n
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""

    first, second = (event.data for event in await seeded.events.of_attempt("r1"))
    assert comparable(second["response"]) == comparable(first["response"])
    assert texts == [choice.message.content for choice in plain.choices]
    for place, choice in enumerate(first["response"]["choices"]):
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])
        assert (await decoded(vllm, first["model"], choice["token_ids"])).startswith(texts[place])
    assert to_triplet(second)["prompt_token_ids"]


async def test_a_streamed_completion_is_recorded_like_the_unstreamed_one(sdk, seeded, vllm):
    plain = await sdk.completions.create(model="any", prompt="two and two is", max_tokens=12, seed=5)
    stream = await sdk.completions.create(model="any", prompt="two and two is", max_tokens=12, seed=5, stream=True)
    text = "".join([chunk.choices[0].text async for chunk in stream])

    first, second = (event.data for event in await seeded.events.of_attempt("r1"))
    assert comparable(second["response"]) == comparable(first["response"])
    assert text == plain.choices[0].text
    triplet = to_triplet(second)
    assert len(triplet["response_token_ids"]) == len(triplet["response_log_probs"]) == 12
    assert await decoded(vllm, first["model"], triplet["response_token_ids"]) == text


async def test_a_streamed_message_is_recorded_like_the_unstreamed_one(claude, seeded, vllm):
    asked: Any = {"model": "any", "max_tokens": 12, "messages": MESSAGES, "extra_body": {"seed": 5}}
    plain = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()

    first, second = (event.data for event in await seeded.events.of_attempt("r1"))
    assert comparable(second["response"]) == comparable(first["response"])
    own = {"id", "usage"}
    assert streamed.model_dump(exclude=own, exclude_none=True) == plain.model_dump(exclude=own, exclude_none=True)
    assert streamed.usage.output_tokens == plain.usage.output_tokens
    triplet = to_triplet(second)
    assert len(triplet["response_token_ids"]) == len(triplet["response_log_probs"]) == plain.usage.output_tokens
    text = "".join(block.text for block in plain.content if block.type == "text")
    assert (await decoded(vllm, first["model"], triplet["response_token_ids"])).startswith(text)


async def test_tokens_are_counted_as_the_call_counts_them(claude, seeded):
    tool: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
    more: Any = {"messages": MESSAGES, "system": "You add.", "tools": [tool]}
    count = await claude.messages.count_tokens(model="any", **more)
    message = await claude.messages.create(model="any", max_tokens=4, **more)

    read = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert count.input_tokens == read
    assert len(await seeded.events.of_attempt("r1")) == 1


async def test_the_neutral_sampling_parameters_are_ones_that_vllm_takes(sdk, seeded):
    wild: Any = {"top_k": 3, "min_p": 0.2, "repetition_penalty": 1.4, "min_tokens": 2, "bad_words": ["two"]}
    answer = await sdk.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=4, top_p=0.3, presence_penalty=1.5, extra_body=wild
    )

    (event,) = await seeded.events.of_attempt("r1")
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert set(event.data["asked"]) >= set(wild) | {"top_p", "presence_penalty"}


async def test_a_refusal_of_vllm_reaches_the_agent_streamed_or_not(sdk, seeded):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await sdk.chat.completions.create(model="any", messages=MESSAGES, max_tokens=-1, stream=stream)

    assert [event.data["http_status"] for event in await seeded.events.of_attempt("r1")] == [400, 400]
