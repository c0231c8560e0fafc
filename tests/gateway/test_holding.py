"""Pauses: refused or waited out, by the run's rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import REGISTRY

from leyden.log import Log, RunLog, RunSettings
from leyden.schemas import Model, PauseRequest
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.stub import MODEL, StubModel

CALL = f"{proxy('r1')}/chat/completions"


@pytest.fixture
async def holding(log: Log, api: httpx.AsyncClient) -> RunLog:
    """A run that holds its calls, with rollout r1 and no server."""
    await log.runs.begin("train", RunSettings(model=MODEL, when_paused="hold"))
    await api.post("/api/runs/train/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    return log.run("train")


async def serve(run: RunLog, model: StubModel) -> None:
    await run.models.replace([Model(model=MODEL, endpoint=model.url, version="main:3")])


async def still_waiting(task: asyncio.Task, seconds: float = 0.2) -> bool:
    done, _ = await asyncio.wait([task], timeout=seconds)
    return not done


@pytest.fixture
async def call(api: httpx.AsyncClient) -> AsyncIterator:
    """Start a call and get its task."""
    tasks: list[asyncio.Task] = []

    def start(**more: object) -> asyncio.Task[httpx.Response]:
        tasks.append(asyncio.create_task(api.post(CALL, json=chat() | more)))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()


async def test_a_run_that_refuses_answers_429_and_forwards_nothing(api, served, default):
    await create(api)
    state = await api.post("/proxy/pause", json={"retry_after_seconds": 9, "reason": "new weights"})

    answer = await api.post(CALL, json=chat())

    assert state.json() == {"paused": True, "retry_after_seconds": 9, "reason": "new weights", "inflight": 0}
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "9"
    assert answer.headers["x-agl-paused"] == "true"
    assert (answer.json()["error"], answer.json()["reason"]) == ("gateway paused", "new weights")
    assert served.requests == []
    await api.post("/proxy/resume")
    assert (await api.post(CALL, json=chat())).status_code == 200


async def test_inflight_counts_what_was_forwarded_before_the_pause_and_drains(api, served, default):
    gate, started = asyncio.Event(), asyncio.Event()
    served.otherwise = stub.once(gate, started=started)
    await create(api)
    call = asyncio.create_task(api.post(CALL, json=chat()))
    await started.wait()

    assert (await api.post("/proxy/pause", json={})).json()["inflight"] == 1
    drained = asyncio.create_task(default.pause.drained(10))
    assert await still_waiting(drained)
    gate.set()
    await drained

    assert (await call).status_code == 200
    assert (await api.get("/proxy/state")).json()["inflight"] == 0


async def test_no_further_try_is_made_once_the_run_is_paused(api, served, default):
    gate, started = asyncio.Event(), asyncio.Event()
    served.scripts = [stub.once(gate, stub.status(500), started=started)]
    await create(api)
    call = asyncio.create_task(api.post(CALL, json=chat()))
    await started.wait()
    await default.pause.pause(PauseRequest())
    gate.set()

    assert (await call).status_code == 429
    assert len(served.requests) == 1
    assert (await default.pause.state()).inflight == 0


async def test_a_held_call_waits_for_the_release(holding, model, call):
    await serve(holding, model)
    await holding.pause.pause()
    waiting = call()

    assert await still_waiting(waiting)
    assert model.requests == []
    assert (await holding.pause.state()).inflight == 0
    await holding.pause.resume()

    answer = await waiting
    assert answer.status_code == 200
    (event,) = await holding.events.of_attempt("r1")
    assert event.data["server"]["version"] == "main:3"


async def test_a_held_call_waits_for_a_server(holding, model, call):
    waiting = call()

    assert await still_waiting(waiting)
    await serve(holding, model)

    assert (await waiting).status_code == 200


async def test_a_held_call_is_forwarded_under_the_rules_and_servers_of_its_release(holding, model, call, log):
    async with StubModel() as old:
        await serve(holding, old)
        await holding.pause.pause()
        waiting = call()
        assert await still_waiting(waiting)
        await serve(holding, model)
        await holding.set_settings(RunSettings(model=MODEL, when_paused="hold", train_temperature=0.5))
        await holding.pause.resume()
        await waiting

    assert old.requests == []
    assert model.requests[0]["temperature"] == 0.5


async def test_a_call_whose_servers_are_gone_is_held_until_one_answers(holding, model, call):
    port = model.port
    await serve(holding, model)
    await model.stop()
    waiting = call()
    assert await still_waiting(waiting, 0.5)

    await model.start(port)
    await holding.models.add([Model(model=MODEL, endpoint=model.url, version="main:4")])

    assert (await waiting).status_code == 200
    (event,) = await holding.events.of_attempt("r1")
    assert (event.data["status"], event.data["model_version"]) == ("ok", "main:4")


async def test_a_malformed_answer_is_not_waited_out(holding, model, call):
    model.otherwise = stub.raw(b"<html>")
    await serve(holding, model)

    assert (await call()).status_code == 502
    (event,) = await holding.events.of_attempt("r1")
    assert event.data["status"] == "error"


async def test_a_call_between_two_tries_is_held_by_a_pause(holding, model, call):
    gate, started = asyncio.Event(), asyncio.Event()
    model.scripts = [stub.once(gate, stub.status(500), started=started)]
    await serve(holding, model)
    waiting = call()
    await started.wait()
    await holding.pause.pause()
    gate.set()

    await holding.pause.drained(5)
    assert await still_waiting(waiting)
    await holding.pause.resume()

    assert (await waiting).status_code == 200
    assert len(model.requests) == 2


async def test_an_aborted_answer_of_a_held_run_is_asked_again_after_the_update(holding, model, call):
    gate, started = asyncio.Event(), asyncio.Event()
    model.scripts = [stub.once(gate, stub.answer("the", finish_reason="abort"), started=started)]
    await serve(holding, model)
    waiting = call()
    await started.wait()
    await holding.pause.pause()
    gate.set()

    assert await still_waiting(waiting)
    await holding.pause.resume()

    assert (await waiting).status_code == 200
    events = await holding.events.of_attempt("r1")
    assert [event.data["delivered"] for event in events] == [False, True]


async def test_a_run_holds_no_longer_than_it_says(log, api, model, call):
    await log.runs.begin("short", RunSettings(model=MODEL, when_paused="hold", hold_timeout_seconds=0.3))
    await api.post("/api/runs/short/rollouts", json=[{"rollout_id": "r1", "input": 1}])
    run = log.run("short")

    assert (await call()).status_code == 503
    await serve(run, model)
    await run.pause.pause(PauseRequest(reason="new weights"))
    assert (await call()).status_code == 429
    await run.pause.resume()
    await model.stop()
    answer = await call()
    assert answer.status_code == 502
    (event,) = await run.events.of_attempt("r1")
    assert (event.data["status"], event.data["http_status"]) == ("error", 502)


async def test_a_held_stream_is_kept_alive_and_then_streams(settings, log, api, model):
    lively = settings.model_copy(update={"keep_alive_seconds": 0.1})
    async with serving(lively) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as other:
        await log.runs.begin("train", RunSettings(model=MODEL, when_paused="hold"))
        await other.post("/api/runs/train/rollouts", json=[{"rollout_id": "r1", "input": 1}])
        run, lines = log.run("train"), []
        async with other.stream("POST", CALL, json=chat(stream=True)) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 2 and not model.requests:
                    await serve(run, model)

    assert lines[-2] == "data: [DONE]"


async def test_a_held_stream_that_is_given_up_ends_in_an_error_event(settings, log, model):
    lively = settings.model_copy(update={"keep_alive_seconds": 0.1})
    async with serving(lively) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as other:
        await log.runs.begin("short", RunSettings(model=MODEL, when_paused="hold", hold_timeout_seconds=0.5))
        await other.post("/api/runs/short/rollouts", json=[{"rollout_id": "r1", "input": 1}])
        answer = await other.post(CALL, json=chat(stream=True))

    assert ": keep-alive" in answer.text
    assert "No servers available" in answer.text
    assert "[DONE]" not in answer.text


async def test_a_held_call_whose_client_goes_leaves_nothing(holding, url, model):
    await serve(holding, model)
    await holding.pause.pause()
    async with httpx.AsyncClient(base_url=url, headers=ADMIN) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post(CALL, json=chat(), timeout=0.3)
    await holding.pause.resume()
    await asyncio.sleep(0.2)

    assert model.requests == []
    assert [entry.kind for entry in await holding.events.entries("r1")] == ["created"]


async def test_a_held_call_of_a_rollout_that_ends_is_refused(holding, model, call, api):
    await holding.pause.pause()
    waiting = call()
    assert await still_waiting(waiting)

    await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})

    answer = await waiting
    assert answer.status_code == 409
    assert "r1" in answer.json()["detail"]


async def test_a_hundred_held_calls_are_all_released_and_the_run_is_followed_once(holding, model, api, redis):
    await api.post("/api/runs/train/rollouts", json=[{"rollout_id": f"h{n}", "input": n} for n in range(100)])
    await holding.pause.pause()
    await serve(holding, model)
    calls = [asyncio.create_task(api.post(f"{proxy(f'h{n}')}/chat/completions", json=chat())) for n in range(100)]
    async with asyncio.timeout(60):
        while REGISTRY.get_sample_value("leyden_gateway_held_calls") != 100:
            await asyncio.sleep(0.05)
    blocked = [client for client in await redis.client_list() if client["cmd"].startswith("xread")]
    await holding.pause.resume()
    answers = await asyncio.gather(*calls)

    assert {answer.status_code for answer in answers} == {200}
    assert len(blocked) == 1
    assert len(model.requests) == 100
