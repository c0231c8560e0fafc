"""Redis killed, restarted, full: nothing is answered that is not recorded, and service comes back by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest
from redis.asyncio import Redis

import leyden.log
from leyden.log import Log, RunSettings
from leyden.redis_server import RedisServer
from leyden_gateway.api import health
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.stub import MODEL, StubModel

CALL = f"{proxy('r1')}/chat/completions"


@pytest.fixture
def redis_url(own_redis: RedisServer) -> str:
    return own_redis.url


@pytest.fixture
def record(own_redis: RedisServer) -> Callable[..., Awaitable[list[dict]]]:
    """Reads what is on record, with a connection of its own."""

    async def read(rollout_id: str = "r1") -> list[dict]:
        log = Log.connect(own_redis.url)
        try:
            return [event.data for event in await log.run("default").events.of_attempt(rollout_id)]
        finally:
            await log.close()

    return read


async def until(api: httpx.AsyncClient, path: str, status: int) -> None:
    """Wait until a route answers with that status."""
    for _ in range(200):
        if (await api.get(path)).status_code == status:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} never answered {status}")


async def sampled_while_redis_is_dead(
    api: httpx.AsyncClient, served: StubModel, redis: RedisServer, *, stream: bool
) -> asyncio.Task[httpx.Response]:
    """A call that the model server answers only when Redis was killed."""
    gate, started = asyncio.Event(), asyncio.Event()
    served.otherwise = stub.once(gate, started=started)
    await create(api)
    call = asyncio.create_task(api.post(CALL, json=chat(stream=stream)))
    await started.wait()
    redis.kill()
    gate.set()
    return call


async def test_while_redis_is_away_everything_but_health_is_503_and_then_it_recovers(api, served, own_redis, record):
    await create(api)
    own_redis.kill()

    call = await api.post(CALL, json=chat())
    stream = await api.post(CALL, json=chat(stream=True))
    listed = await api.get("/api/rollouts", params={"state_in": "queuing"})
    created = await api.post("/api/rollouts", json=[{"input": 1}])
    ready = await api.get("/readyz")
    health = await api.get("/healthz")

    for answer in (call, stream, listed, created, ready):
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"] == "5"
        assert "Redis" in answer.json()["detail"]
    assert health.status_code == 200
    assert served.requests == []
    own_redis.start()
    await until(api, "/readyz", 200)
    assert (await api.post(CALL, json=chat())).status_code == 200
    assert len(await record()) == 1


@pytest.fixture
def impatient(monkeypatch) -> float:
    """After how many seconds of silence the log gives Redis up; readiness does so after a third of it, as always."""
    monkeypatch.setattr(leyden.log, "_ANSWER_TIMEOUT_SECONDS", 1.5)
    monkeypatch.setattr(health, "_READY_SECONDS", 0.5)
    return 1.5


async def test_a_redis_that_hangs_costs_a_call_one_timeout_and_readiness_less(
    impatient, api, served, own_redis, record
):
    await create(api)
    assert (await api.post(CALL, json=chat())).status_code == 200

    async def asked(method: str, path: str, body: object = None) -> tuple[float, httpx.Response]:
        started = time.monotonic()
        answer = await api.request(method, path, json=body, timeout=60)
        return time.monotonic() - started, answer

    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            (to_ready, ready), *others = await asyncio.gather(
                asked("GET", "/readyz"),
                asked("POST", CALL, chat()),
                asked("POST", "/api/rollouts", [{"input": 1}]),
                asked("GET", "/api/rollouts/r1"),
                asked("POST", "/api/rollouts/r1/attempt/0/events", {"event_type": "reward", "data": {"value": 1}}),
            )
            assert ready.status_code == 503
            assert to_ready < impatient
            for took, answer in others:
                assert answer.status_code == 503, answer.text
                assert answer.headers["retry-after"] == "5"
                assert took < 2 * impatient
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)

    await until(api, "/readyz", 200)
    assert (await api.post(CALL, json=chat())).status_code == 200
    assert len(await record()) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_waits_for_a_redis_that_comes_back(api, served, own_redis, record, stream):
    call = await sampled_while_redis_is_dead(api, served, own_redis, stream=stream)
    await asyncio.sleep(0.5)
    assert not call.done()

    own_redis.start()

    answer = await call
    assert answer.status_code == 200
    assert len(await record()) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cant_be_recorded_is_not_given(api, served, own_redis, record, stream):
    answer = await (await sampled_while_redis_is_dead(api, served, own_redis, stream=stream))

    if stream:
        assert "Redis" in answer.text
        assert "[DONE]" not in answer.text
        assert '"stop"' not in answer.text
    else:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    own_redis.start()
    assert await record() == []


async def test_a_kill_of_redis_under_load_loses_and_doubles_nothing(api, served, own_redis, record):
    await api.post("/api/rollouts", json=[{"rollout_id": f"k{n}", "input": n} for n in range(20)])
    answered: dict[str, int] = {}

    async def agent(number: int) -> None:
        name = f"k{number}"
        for turn in range(6):
            while True:
                answer = await api.post(f"{proxy(name)}/chat/completions", json=chat(f"turn {turn}"))
                if answer.status_code == 200:
                    answered[name] = answered.get(name, 0) + 1
                    break
                assert answer.status_code == 503
                await asyncio.sleep(0.05)

    agents = [asyncio.create_task(agent(number)) for number in range(20)]
    for _ in range(2):
        await asyncio.sleep(0.3)
        own_redis.kill()
        await asyncio.sleep(0.2)
        own_redis.start()
    await asyncio.gather(*agents)

    for number in range(20):
        calls = await record(f"k{number}")
        ids = [call["call_id"] for call in calls]
        assert len(set(ids)) == len(ids)
        assert len(calls) >= answered[f"k{number}"] == 6


async def test_a_full_redis_records_nothing_new_and_answers_503_but_finishes_what_is_open(
    api, served, own_redis, record
):
    gate, started = asyncio.Event(), asyncio.Event()
    served.scripts = [stub.once(gate, started=started)]
    await create(api)
    opened = asyncio.create_task(api.post(CALL, json=chat()))
    await started.wait()
    redis = Redis.from_url(own_redis.url)
    await redis.config_set("maxmemory", "1mb")
    try:
        refused = await api.post(CALL, json=chat())
        created = await api.post("/api/rollouts", json=[{"input": 1}])
        gate.set()
        assert (await opened).status_code == 200
        assert (await api.delete("/api/rollouts/none")).status_code == 204
        deleted = await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})
        assert deleted.status_code == 200
    finally:
        await redis.config_set("maxmemory", "0")
        await redis.aclose()

    for answer in (refused, created):
        assert answer.status_code == 503
        assert "memory" in answer.json()["detail"]
    assert len(served.requests) == 1
    assert len(await record()) == 1


async def test_a_read_only_redis_is_a_503(api, served, own_redis, record):
    await create(api)
    redis = Redis.from_url(own_redis.url)
    await redis.config_set("min-replicas-to-write", "1")
    try:
        answer = await api.post(CALL, json=chat())
    finally:
        await redis.config_set("min-replicas-to-write", "0")
        await redis.aclose()

    assert answer.status_code == 503
    assert (await api.post(CALL, json=chat())).status_code == 200


async def test_a_gateway_started_before_redis_serves_once_it_is_there(settings, own_redis, model):
    own_redis.kill()
    async with serving(settings) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as api:
        assert (await api.get("/readyz")).status_code == 503
        own_redis.start()
        await until(api, "/readyz", 200)
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(api)
        assert (await api.post(CALL, json=chat())).status_code == 200


async def test_a_held_call_survives_a_restart_of_redis(api, model, own_redis):
    log = Log.connect(own_redis.url)
    await log.runs.begin("train", RunSettings(model=MODEL, when_paused="hold"))
    await api.post("/api/runs/train/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    call = asyncio.create_task(api.post(CALL, json=chat()))
    await asyncio.sleep(0.3)
    own_redis.kill()
    await asyncio.sleep(0.3)
    own_redis.start()
    await asyncio.sleep(0.3)

    await log.close()
    registered = await api.post("/api/runs/train/models", json=[{"model": MODEL, "endpoint": model.url}])
    assert registered.status_code == 201

    assert (await call).status_code == 200
