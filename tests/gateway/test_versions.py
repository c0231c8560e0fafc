"""New weights while a call runs are on record, and a further try knows them."""

from __future__ import annotations

import asyncio

import pytest

from leyden.triplet import model_calls
from leyden_trainer.calls import usable_calls
from tests.gateway import stub
from tests.gateway.conftest import chat, create, proxy
from tests.gateway.stub import MODEL

CALL = f"{proxy('r1')}/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_across_an_update_has_both_versions_and_the_trainer_sees_them(api, served, default, stream):
    gate, started = asyncio.Event(), asyncio.Event()
    served.otherwise = stub.once(gate, started=started)
    await create(api)
    call = asyncio.create_task(api.post(CALL, json=chat(stream=stream)))
    await started.wait()
    await api.post("/api/models", json=[{"model": MODEL, "endpoint": served.url, "version": 8}])
    gate.set()
    assert (await call).status_code == 200

    (event,) = await default.events.of_attempt("r1")

    assert event.data["model_version"] == 7
    assert event.data["server"] == {"model": MODEL, "endpoint": served.url, "version": 7}
    assert event.data["model_version_at_end"] == 8
    (triplet,) = (await api.get("/api/rollouts/r1/events", params={"format": "triplet"})).json()
    assert triplet["data"]["server"] == {"model": MODEL, "version": 7}
    assert triplet["data"]["model_version_at_end"] == 8
    (usable,), _ = usable_calls(model_calls([event]), log_probs_required=True, experts_required=False)
    assert (usable.version, usable.version_at_end) == (7, 8)


async def test_a_further_try_after_an_update_is_on_record_under_the_new_weights(api, served, default):
    async def update(body, request):
        answer = await api.post("/api/models", json=[{"model": MODEL, "endpoint": served.url, "version": 8}])
        assert answer.status_code == 201
        return await stub.status(503)(body, request)

    served.scripts = [update]
    await create(api)

    assert (await api.post(CALL, json=chat())).status_code == 200

    (event,) = await default.events.of_attempt("r1")
    assert (event.data["server"]["version"], event.data["model_version_at_end"]) == (8, 8)


async def test_a_further_try_without_any_server_left_is_503(api, served, default):
    async def clear(body, request):
        assert (await api.delete("/api/models")).status_code == 200
        return await stub.status(503)(body, request)

    served.scripts = [clear]
    await create(api)

    answer = await api.post(CALL, json=chat())

    assert (answer.status_code, answer.json()["detail"]) == (503, f"No servers available for model '{MODEL}'")
    assert await default.events.of_attempt("r1") == []
    assert (await default.pause.state()).inflight == 0
