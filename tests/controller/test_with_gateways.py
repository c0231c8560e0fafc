"""Controllers, gateways and agents together, around a model server that always answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from leyden.schemas import State
from leyden_gateway.settings import GatewaySettings
from tests.controller.support import KEY, asked, outcomes, started
from tests.gateway.conftest import serving
from tests.gateway.stub import MODEL, TEXT, StubModel

AGENT_LIGHTNING_AGENT = '''
"""Written for Agent Lightning: a class with run(), and three variables."""
import os

import httpx
from openai import AsyncOpenAI


class MathAgent:
    async def run(self) -> None:
        key = os.environ["AGL_KEY"]
        client = AsyncOpenAI(base_url=os.environ["AGL_OPENAI_BASE_URL"], api_key=key)
        completion = await client.chat.completions.create(
            model="any-name", messages=[{"role": "user", "content": os.environ["QUESTION"]}]
        )
        reward = 1.0 if completion.choices[0].message.content == os.environ["ANSWER"] else 0.0
        async with httpx.AsyncClient() as http:
            response = await http.post(
                os.environ["AGL_EVENT_URL"],
                headers={"Authorization": f"Bearer {key}"},
                json={"event_type": "reward", "data": {"value": reward}},
            )
            response.raise_for_status()
'''

PLAIN_AGENT = """
import json, os, urllib.request

def post(url, body):
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["AGL_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

message = {"role": "user", "content": os.environ["QUESTION"]}
post(os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions", {"model": "m", "messages": [message]})
post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": 0.5}})
"""


@pytest.fixture
def settings(redis_url) -> GatewaySettings:
    return GatewaySettings.model_validate({"redis_url": redis_url, "key": KEY, "model": MODEL})


async def register(model: StubModel, gateway: str) -> None:
    """Tell run `default` of its model server."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as client:
        answer = await client.post(f"{gateway}/api/models", json=[{"model": MODEL, "endpoint": model.url}])
    assert answer.status_code == 201, answer.text


async def test_an_agent_written_for_agent_lightning_runs_unchanged(log, settings, start_controller, tmp_path):
    (tmp_path / "math_agent.py").write_text(AGENT_LIGHTNING_AGENT)
    async with StubModel() as model, serving(settings) as gateway:
        run = log.run("default")
        await register(model, gateway)
        await start_controller(gateway_url=gateway)
        await run.rollouts.create(
            asked(
                "a",
                agent_class="math_agent.MathAgent",
                env_map={"QUESTION": "input.question", "ANSWER": "input.answer"},
                input={"question": "two and two?", "answer": TEXT},
                is_train=False,
            )
        )

        assert (await outcomes(run, 1))["a"].state is State.SUCCEEDED, (await run.rollouts.get("a")).status

    called, rewarded = await run.events.of_attempt("a")
    assert called.data["request"]["messages"] == [{"role": "user", "content": "two and two?"}]
    assert called.data["request"]["temperature"] == settings.val_temperature
    assert called.data["response"]["choices"][0]["token_ids"]
    assert (rewarded.event_type, rewarded.data) == ("reward", {"value": 1.0})


@pytest.mark.timeout(300)
async def test_two_gateways_and_two_controllers_run_200_rollouts_each_once(log, settings, start_controller, tmp_path):
    (tmp_path / "agent.py").write_text(PLAIN_AGENT)
    ids = [f"r{n}" for n in range(200)]
    async with StubModel() as model, serving(settings) as one, serving(settings) as other:
        run = log.run("default")
        await register(model, one)
        await asyncio.gather(*(start_controller(gateway_url=url, slots=4) for url in (one, other)))
        await run.rollouts.create_many(
            asked(each, "python3 agent.py", cwd=str(tmp_path), env_map={"QUESTION": "input"}, input=each)
            for each in ids
        )

        found = await outcomes(run, len(ids), seconds=240)

    assert {each.state for each in found.values()} == {State.SUCCEEDED}
    assert len(model.requests) == len(ids)
    for each in ids:
        assert await started(run, each) == ["0"]
        called, rewarded = await run.events.of_attempt(each)
        assert called.data["request"]["messages"][0]["content"] == each
        assert rewarded.data == {"value": 0.5}
