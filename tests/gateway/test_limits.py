"""What a replica takes on, what a full Redis lets through, and what the metrics say of both."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from leyden.auth import AgentClaims, Authority
from leyden.log import Log, RunSettings
from leyden.redis_server import RedisServer
from leyden.schemas import Model, NewRollout, State
from leyden_gateway import log_metrics, metrics
from leyden_gateway.housekeeping import tidy
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, KEY, chat, create, proxy, serving
from tests.gateway.stub import MODEL

CALL = f"{proxy('r1')}/chat/completions"


@pytest.fixture
def settings(settings):
    """Two calls at a time."""
    return settings.model_copy(update={"max_concurrent_calls": 2})


def sample(text: str, name: str) -> float:
    """A metric's value."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} in\n{text}"
    return float(found[1])


async def test_a_call_too_many_is_503_with_retry_after_and_the_others_are_not_disturbed(api, served, default):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate), stub.once(gate)]
    await create(api)
    calls = [asyncio.create_task(api.post(CALL, json=chat(f"call {n}"))) for n in range(2)]
    while len(served.requests) < 2:
        await asyncio.sleep(0.01)

    refused = await api.post(CALL, json=chat())
    listed = await api.get(f"{proxy('r1')}/models")
    gate.set()

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "2 calls are under way in this replica, which takes 2 (max_concurrent_calls)" in refused.json()["detail"]
    assert listed.status_code == 200
    assert {(await call).status_code for call in calls} == {200}
    assert (await api.post(CALL, json=chat())).status_code == 200
    text = (await api.get("/metrics")).text
    assert sample(text, 'leyden_gateway_calls_refused_total{reason="too many calls",status="503"}') >= 1


async def test_held_calls_take_no_room_and_all_go_on_after_the_pause(api, log: Log, model):
    await log.runs.begin("train", RunSettings(model=MODEL, when_paused="hold"))
    run = log.run("train")
    await run.models.add([Model(model=MODEL, endpoint=model.url)])
    await run.rollouts.create(NewRollout(input=1, rollout_id="r1"))
    await run.pause.pause()
    calls = []
    for n in range(6):
        calls.append(asyncio.create_task(api.post(CALL, json=chat(f"call {n}"))))
        await asyncio.sleep(0.2)
    assert not any(call.done() for call in calls)

    await run.pause.resume()

    assert {(await call).status_code for call in calls} == {200}


async def test_calls_of_a_fenced_attempt_are_let_go_while_the_run_is_paused(api, log: Log, model):
    await log.runs.begin("train", RunSettings(model=MODEL, when_paused="hold"))
    run = log.run("train")
    await run.rollouts.create(NewRollout(input=1, rollout_id="r1"))
    location = await log.locate("r1")
    await api.patch("/api/rollouts/r1", json={"status": {"state": "running", "last_attempt_id": "0"}})
    await run.pause.pause()
    token = Authority(KEY).mint(AgentClaims("r1", location.nonce, "0"))
    call = asyncio.create_task(api.post(CALL, json=chat(), headers={"authorization": f"Bearer {token}"}))
    await asyncio.sleep(0.3)
    assert not call.done()

    await api.patch("/api/rollouts/r1", json={"status": {"last_attempt_id": "1"}})

    answer = await asyncio.wait_for(call, 5)
    assert answer.status_code == 409
    assert "attempt 1 has taken over" in answer.json()["detail"]


async def test_the_metrics_say_what_waits_and_who_is_behind(api, served, log: Log):
    await log.runs.begin("train", RunSettings(readers=["trainer"]))
    run = log.run("train")
    await run.rollouts.create_many(NewRollout(input=n, rollout_id=f"a{n}") for n in range(4))
    await run.rollouts.end("a0", State.FAILED)
    await run.rollouts.end("a1", State.FAILED)
    await run.completions.read("trainer", "t", 1, 1)
    await run.pause.pause()
    await create(api)
    await api.post(CALL, json=chat())

    text = (await api.get("/metrics")).text

    assert sample(text, "leyden_log_up") == 1
    assert sample(text, 'leyden_queue_waiting{run="train"}') == 2
    assert sample(text, 'leyden_queue_oldest_seconds{run="train"}') > 0
    assert sample(text, 'leyden_rollouts{run="train",state="failed"}') == 2
    assert sample(text, 'leyden_completions_not_given{reader="trainer",run="train"}') == 1
    assert sample(text, 'leyden_completions_not_acknowledged{reader="trainer",run="train"}') == 1
    assert sample(text, 'leyden_run_paused{run="train"}') == 1
    assert sample(text, 'leyden_run_inflight_calls{run="default"}') == 0
    assert sample(text, 'leyden_redis_memory_bytes{kind="used"}') > 100_000
    assert sample(text, 'leyden_gateway_tokens_total{kind="completion"}') >= 4


def test_the_docs_name_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    counted = [each for each in vars(metrics).values() if hasattr(each, "_name")]
    names = {each._name + "_total" * (each._type == "counter") for each in counted} | set(log_metrics._FAMILIES)

    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


async def test_retention_is_for_runs_that_nobody_reads(log: Log):
    for name, readers in (("read", ["trainer"]), ("unread", [])):
        await log.runs.begin(name, RunSettings(readers=readers, retention_seconds=0.01))
        run = log.run(name)
        await run.rollouts.create(NewRollout(input=1, rollout_id=f"{name}.a"))
        await run.rollouts.end(f"{name}.a", State.SUCCEEDED)
    await asyncio.sleep(0.05)

    for name in ("read", "unread", "none"):
        await tidy(log.run(name))

    assert (await log.run("read").rollouts.counts())[State.SUCCEEDED] == 1
    assert (await log.run("unread").rollouts.counts())[State.SUCCEEDED] == 0


async def test_near_the_limit_rollouts_are_503_while_events_go_in_and_past_it_events_are_503_too(
    settings, tmp_path, model, monkeypatch
):
    monkeypatch.setattr("leyden.log.memory._MAX_AGE_SECONDS", -1.0)
    with RedisServer(tmp_path / "small") as server:
        redis = Redis.from_url(server.url)
        async with (
            serving(settings.model_copy(update={"redis_url": server.url})) as base,
            httpx.AsyncClient(base_url=base, headers=ADMIN) as api,
        ):
            await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
            await create(api)
            agent = await _agent(server.url)
            used = (await redis.info("memory"))["used_memory"]
            await redis.config_set("maxmemory", str(int(used / 0.95)))

            refused = await api.post("/api/rollouts", json=[{"input": 1}])
            again = await api.post("/api/rollouts", json=[{"rollout_id": "r1", "input": 1}])
            call = await api.post(CALL, json=chat())
            events = "/api/rollouts/r1/attempt/0/events"
            note = await api.post(events, json={"event_type": "note"}, headers=agent)
            await redis.config_set("maxmemory", "1")
            full = [
                await api.post(events, json={"event_type": "note"}, headers=agent),
                await api.post(CALL, json=chat()),
                await api.post("/api/rollouts", json=[{"input": 1}]),
            ]
            reward = await api.post(events, json={"event_type": "reward", "data": {"value": 1}}, headers=agent)
            ready = await api.get("/readyz")
            ended = await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})
            deleted = await api.delete("/api/rollouts/r1")

        await redis.aclose()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert re.search(r"Redis uses .* MiB of its memory limit of .* MiB, and new rollouts", refused.json()["detail"])
    assert (again.status_code, call.status_code, note.status_code) == (201, 200, 200)
    assert [answer.status_code for answer in full] == [503, 503, 503]
    assert all("memory" in answer.json()["detail"] for answer in full)
    assert (reward.status_code, ended.status_code, deleted.status_code) == (200, 200, 204)
    assert (ready.status_code, ready.json()["status"]) == (200, "full")


async def test_a_redis_that_may_evict_is_complained_of_at_the_start(settings, tmp_path, capsys):
    with RedisServer(tmp_path / "evicting") as server:
        redis = Redis.from_url(server.url)
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        async with (
            serving(settings.model_copy(update={"redis_url": server.url})) as base,
            httpx.AsyncClient(base_url=base) as client,
        ):
            said = ""
            for _ in range(100):
                said += capsys.readouterr().out
                if "evicted" in said:
                    break
                assert (await client.get("/healthz")).status_code == 200
                await asyncio.sleep(0.02)
        await redis.aclose()

    assert "maxmemory-policy is allkeys-lru: what is on record may be evicted" in said


async def test_metrics_are_there_while_redis_is_away(settings, tmp_path):
    with RedisServer(tmp_path / "gone") as server:
        async with (
            serving(settings.model_copy(update={"redis_url": server.url})) as base,
            httpx.AsyncClient(base_url=base, headers=ADMIN, timeout=30) as api,
        ):
            server.kill()
            answer = await api.get("/metrics")

    assert answer.status_code == 200
    assert sample(answer.text, "leyden_log_up") == 0
    assert "leyden_gateway_calls_total" in answer.text


async def _agent(redis_url: str) -> dict[str, str]:
    log = Log.connect(redis_url)
    try:
        location = await log.locate("r1")
    finally:
        await log.close()
    return {"authorization": f"Bearer {Authority(KEY).mint(AgentClaims('r1', location.nonce, '0'))}"}
