"""Replicas killed with SIGKILL, alone and under load; and stopped as they should be."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections import Counter

import httpx
import psutil
import pytest

from leyden.log import Log
from leyden.schemas import State
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy
from tests.gateway.processes import GatewayProcess
from tests.gateway.stub import MODEL, StubModel

CALL = f"{proxy('r1')}/chat/completions"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def model():
    """A model server that numbers its answers."""
    async with StubModel() as served:
        numbers = itertools.count()
        served.otherwise = stub.answer(change=lambda response: response.update(id=f"answer-{next(numbers)}"))
        yield served


async def register(api: httpx.AsyncClient, model: StubModel) -> None:
    await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])


async def test_a_replica_killed_in_a_call_leaves_no_event_no_ghost_and_a_retry_works(redis_url, tmp_path, model, log):
    default, started = log.run("default"), asyncio.Event()
    first, second = GatewayProcess(redis_url, tmp_path), GatewayProcess(redis_url, tmp_path)
    await asyncio.gather(first.start(), second.start())
    async with (
        httpx.AsyncClient(base_url=first.url, headers=ADMIN, timeout=60) as one,
        httpx.AsyncClient(base_url=second.url, headers=ADMIN, timeout=60) as other,
    ):
        await register(one, model)
        await create(one)
        model.scripts = [stub.once(asyncio.Event(), started=started)]
        call = asyncio.create_task(one.post(CALL, json=chat()))
        await started.wait()
        await first.kill()
        with pytest.raises(httpx.TransportError):
            await call

        assert (await other.post(CALL, json=chat())).status_code == 200
        await default.pause.pause()
        await default.pause.drained(30)
        await default.pause.resume()
        await default.rollouts.end("r1", State.FAILED, error="test")

    await second.end()
    kinds = Counter(entry.kind for entry in await default.events.entries("r1"))
    assert (kinds["event"], kinds["lost"]) == (1, 1)


async def test_replicas_killed_at_any_moment_never_lose_or_double_what_an_agent_saw(redis_url, tmp_path, model, log):
    """Every complete answer an agent saw is on record once, and nothing is on record that was not sampled."""
    agents, turns = 12, 16
    replicas = [GatewayProcess(redis_url, tmp_path) for _ in range(2)]
    await asyncio.gather(*(replica.start() for replica in replicas))
    seen: dict[str, list[str]] = {f"k{number}": [] for number in range(agents)}
    chance = random.Random(7)

    async def agent(name: str) -> None:
        async with httpx.AsyncClient(headers=ADMIN, timeout=60) as client:
            for turn in range(turns):
                stream = turn % 2 == 0
                while True:
                    base = chance.choice(replicas).url
                    try:
                        answer = await client.post(
                            f"{base}{proxy(name)}/chat/completions", json=chat(f"turn {turn}", stream=stream)
                        )
                    except httpx.TransportError:
                        await asyncio.sleep(0.1)
                        continue
                    if answer.status_code == 200 and (not stream or answer.text.endswith("data: [DONE]\n\n")):
                        seen[name].append(answer.text.split('"id":"')[1].split('"')[0])
                        break
                    await asyncio.sleep(0.1)

    async with httpx.AsyncClient(base_url=replicas[0].url, headers=ADMIN) as api:
        await register(api, model)
        await api.post("/api/rollouts", json=[{"rollout_id": name, "input": 1} for name in seen])
    working = [asyncio.create_task(agent(name)) for name in seen]
    for victim in (0, 1, 0):
        await asyncio.sleep(0.2 + chance.random())
        await replicas[victim].kill()
        await replicas[victim].start()
    await asyncio.gather(*working)
    for replica in replicas:
        await replica.kill()

    default = log.run("default")
    for name, answers in seen.items():
        recorded = Counter(event.data["response"]["id"] for event in await default.events.of_attempt(name))
        assert len(answers) == turns
        assert all(recorded[answer] == 1 for answer in answers)
        assert set(recorded.values()) == {1}
        assert len(recorded) <= len(model.requests)


async def test_sigterm_lets_a_call_end_first(redis_url, tmp_path, model, log):
    gate, started = asyncio.Event(), asyncio.Event()
    model.scripts = [stub.once(gate, started=started)]
    async with (
        GatewayProcess(redis_url, tmp_path) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=ADMIN, timeout=60) as api,
    ):
        await register(api, model)
        await create(api)
        call = asyncio.create_task(api.post(CALL, json=chat()))
        await started.wait()
        ending = asyncio.create_task(gateway.end())
        await asyncio.sleep(0.3)
        gate.set()

        assert (await call).status_code == 200
        assert await ending in (0, -signal.SIGTERM)
    assert len(await log.run("default").events.of_attempt("r1")) == 1


async def test_two_gateways_serve_two_hundred_rollouts_each_exactly_once(redis_url, tmp_path, model, log: Log):
    replicas = [GatewayProcess(redis_url, tmp_path), GatewayProcess(redis_url, tmp_path, workers=2)]
    await asyncio.gather(*(replica.start() for replica in replicas))
    names = [f"t{number}" for number in range(200)]
    limit = asyncio.Semaphore(32)

    async def rollout(place: int, name: str, clients: list[httpx.AsyncClient]) -> None:
        async with limit:
            for turn in range(3):
                client = clients[(place + turn) % 2]
                answer = await client.post(f"{proxy(name)}/chat/completions", json=chat(f"{name} {turn}"))
                assert answer.status_code == 200, answer.text
            reward = {"event_type": "reward", "data": {"value": place}, "event_id": "reward"}
            ends = [{"state": "running"}, {"state": "succeeded"}]
            for client in clients:
                assert (await client.post(f"/api/rollouts/{name}/attempt/0/events", json=reward)).status_code == 200
            for status, client in zip(ends, clients, strict=True):
                patched = await client.patch(f"/api/rollouts/{name}", json={"status": status})
                assert patched.status_code == 200

    async with (
        httpx.AsyncClient(base_url=replicas[0].url, headers=ADMIN, timeout=60) as one,
        httpx.AsyncClient(base_url=replicas[1].url, headers=ADMIN, timeout=60) as other,
    ):
        await register(one, model)
        body = [{"rollout_id": name, "input": {"data_id": name}} for name in names]
        made = await asyncio.gather(one.post("/api/rollouts", json=body), other.post("/api/rollouts", json=body))
        assert {answer.status_code for answer in made} == {201}
        await asyncio.gather(*(rollout(place, name, [one, other]) for place, name in enumerate(names)))
        page = (await other.get("/api/rollouts/terminal")).json()
        counted = (await other.get("/metrics")).text
    for replica in replicas:
        await replica.end()

    assert sorted(item["rollout_id"] for item in page["items"]) == sorted(names)
    assert page["total_terminal"] == 200
    assert len(model.requests) == 600
    default = log.run("default")
    for place, name in enumerate(names):
        events = await default.events.of_attempt(name)
        assert [event.event_type for event in events] == ["model_request"] * 3 + ["reward"]
        assert events[-1].data == {"value": place}
    assert (
        float(counted.split('leyden_gateway_calls_total{outcome="ok",protocol="chat/completions"} ')[1].split()[0]) > 0
    )


async def test_worker_processes_end_with_a_master_that_is_killed_and_the_port_is_free_again(redis_url, tmp_path):
    gateway = await GatewayProcess(redis_url, tmp_path, workers=2).start()
    workers = psutil.Process(gateway.pid).children(recursive=True)
    assert len(workers) >= 2

    await gateway.kill()

    _, left = await asyncio.to_thread(psutil.wait_procs, workers, timeout=30)
    assert left == []
    await gateway.start()
    await gateway.end()
