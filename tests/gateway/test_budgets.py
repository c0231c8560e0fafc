"""An attempt whose budget is used up: every protocol says so in its own words, and its clients don't ask again."""

from __future__ import annotations

import anthropic
import httpx
import httpx2
import openai
import pytest

from leyden.log import RunSettings
from tests.gateway import stub
from tests.gateway.conftest import KEY, chat, create, proxy
from tests.gateway.stub import MODEL

CALL = f"{proxy('r1')}/chat/completions"


@pytest.fixture
async def one_call(api: httpx.AsyncClient, served) -> None:
    """A rollout `r1` that may make one call, and has made it."""
    await create(api, config={"max_calls_per_attempt": 1})
    assert (await api.post(CALL, json=chat())).status_code == 200


async def test_a_call_past_the_budget_is_403_and_names_budget_use_and_limit(api, served, one_call, default):
    answer = await api.post(CALL, json=chat())

    assert answer.status_code == 403
    assert answer.headers["x-should-retry"] == "false"
    detail = "Rollout r1: attempt 0 has used its budget of calls: 1 of 1 (max_calls_per_attempt)"
    assert answer.json()["detail"] == detail
    assert answer.json()["error"]["message"] == detail
    assert answer.json()["error"]["code"] == "budget_exceeded"
    assert len(served.requests) == 1
    shown = (await api.get("/api/rollouts/r1")).json()["spent"]
    assert shown == {"0": {"calls": 1, "tokens": 10, "refused": "calls"}}


async def test_the_official_clients_do_not_try_again(url, api, served, one_call):
    tried: list[str] = []

    async def count(request: httpx2.Request) -> None:
        tried.append(request.url.path)

    async with httpx2.AsyncClient(event_hooks={"request": [count]}) as http:
        client = openai.AsyncOpenAI(base_url=f"{url}{proxy('r1')}", api_key=KEY, http_client=http)
        for ask in (
            lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]),
            lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True),
            lambda: client.completions.create(model="m", prompt="x"),
            lambda: client.responses.create(model="m", input="x"),
        ):
            with pytest.raises(openai.PermissionDeniedError, match="budget of calls: 1 of 1") as refused:
                await ask()
            assert refused.value.code == "budget_exceeded"
        messages = anthropic.AsyncAnthropic(
            base_url=f"{url}{proxy('r1').removesuffix('openai/v1')}anthropic", api_key=KEY, http_client=http
        )
        with pytest.raises(anthropic.PermissionDeniedError, match="budget of calls: 1 of 1"):
            await messages.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])

    assert len(tried) == 5
    assert len(served.requests) == 1


async def test_the_run_s_token_budget_counts_prompts_and_answers(api, served, default):
    await default.set_settings(RunSettings(model=MODEL, max_tokens_per_attempt=15))
    await create(api)
    codes = [(await api.post(CALL, json=chat())).status_code for _ in range(3)]

    assert codes == [200, 200, 403]
    assert (await api.get("/api/rollouts/r1")).json()["spent"]["0"] == {"calls": 2, "tokens": 20, "refused": "tokens"}


async def test_tries_at_servers_count_as_one_call_and_an_aborted_answer_as_none(api, served, default):
    await create(api, config={"max_calls_per_attempt": 2})
    served.scripts = [stub.status(503), stub.status(500), stub.answer(), stub.answer(finish_reason="abort")]

    assert [(await api.post(CALL, json=chat())).status_code for _ in range(3)] == [200, 200, 403]

    assert len(served.requests) == 5
    assert len(await default.events.of_attempt("r1")) == 3
    assert (await api.get("/api/rollouts/r1")).json()["spent"]["0"]["calls"] == 2


async def test_a_stream_that_reports_no_usage_is_counted_by_its_ids(api, served):
    def without_usage(response: dict) -> None:
        response["usage"] = None

    await create(api)
    served.otherwise = stub.answer(change=without_usage)
    await api.post(CALL, json=chat())

    assert (await api.get("/api/rollouts/r1")).json()["spent"]["0"]["tokens"] == 10


async def test_what_is_not_a_call_takes_nothing_and_is_not_refused(api, one_call):
    assert (await api.get(f"{proxy('r1')}/models")).status_code == 200
    assert (await api.get("/api/rollouts/r1")).json()["spent"]["0"]["calls"] == 1


@pytest.mark.parametrize("name", ["max_calls_per_attempt", "max_tokens_per_attempt"])
async def test_a_budget_of_nothing_is_refused_by_name(api, name):
    answer = await api.post("/api/rollouts", json=[{"input": 1, "config": {name: 0}}])

    assert answer.status_code == 422
    assert name in answer.text
