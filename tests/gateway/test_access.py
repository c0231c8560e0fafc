"""Credentials: what the admin key, an attempt's token and nothing may do."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from leyden.auth import AgentClaims, Authority, Right
from leyden.log import Log, RunLog
from leyden.schemas import State, StatusPatch
from leyden_gateway.app import create_app
from tests.gateway import stub
from tests.gateway.conftest import KEY, chat, create, proxy, serving
from tests.gateway.stub import MODEL

CALL = f"{proxy('r1')}/chat/completions"
EVENTS = "/api/rollouts/r1/attempt/0/events"
REWARD = {"event_type": "reward", "data": {"value": 1.0}}


async def token(log: Log, rollout_id: str = "r1", attempt: str = "0", rights: set[Right] | None = None) -> dict:
    """Headers of an agent."""
    location = await log.locate(rollout_id)
    claims = AgentClaims(rollout_id, location.nonce, attempt, frozenset(rights or Right))
    return {"authorization": f"Bearer {Authority(KEY).mint(claims)}"}


@pytest.fixture
async def anyone(url: str):
    """A client without credentials of its own."""
    async with httpx.AsyncClient(base_url=url) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"x-api-key": ""}])
async def test_without_the_key_every_route_but_health_is_401(anyone, served, settings, headers):
    for method, path in _routes(settings):
        answer = await anyone.request(method, path, headers=headers, content=b"{no json")
        if path in ("/healthz", "/readyz"):
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["detail"]) == (401, "Invalid or missing API key"), (method, path)
    assert ("POST", CALL) in _routes(settings)
    assert served.requests == []


@pytest.mark.parametrize("headers", [{"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}])
async def test_both_ways_to_send_the_key_work(anyone, api, served, headers):
    await create(api)

    assert (await anyone.post(CALL, headers=headers, json=chat())).status_code == 200


async def test_an_agents_token_may_call_and_report_on_its_own_attempt(anyone, api, served, log, default):
    await create(api)
    agent = await token(log)

    assert (await anyone.post(CALL, headers=agent, json=chat())).status_code == 200
    assert (await anyone.post(EVENTS, headers=agent, json=REWARD)).status_code == 200
    assert (await anyone.post(EVENTS, headers=agent, json={"event_type": "note"})).status_code == 200
    assert (await anyone.get(f"{proxy('r1')}/models", headers=agent)).status_code == 200
    events = await default.events.of_attempt("r1")
    assert [event.event_type for event in events] == ["model_request", "reward", "note"]


async def test_an_agents_token_is_refused_everywhere_else(anyone, api, served, settings, log):
    await create(api)
    await create(api, "r2")
    agent = await token(log)

    for method, path in _routes(settings):
        if path in ("/healthz", "/readyz", EVENTS) or path.startswith("/proxy/rollout/"):
            continue
        answer = await anyone.request(method, path, headers=agent, json=_body(method, path))
        assert answer.status_code == 403, (method, path, answer.text)
    own = [(method, path) for method, path in _routes(settings) if "/attempt/0/" in path]
    others = [("/r1/", "/r2/"), ("/attempt/0/", "/attempt/1/")]
    assert len(own) >= 9
    for method, path in [(method, path.replace(*other)) for method, path in own for other in others]:
        answer = await anyone.request(method, path, headers=agent, json=chat() | REWARD)
        assert answer.status_code == 403, (method, path, answer.text)
        assert "attempt 0 of rollout r1" in answer.json()["detail"]
    assert served.requests == []


@pytest.mark.parametrize(
    ("rights", "address", "body"),
    [
        ({Right.EVENT, Right.REWARD}, CALL, chat()),
        ({Right.CALL, Right.EVENT}, EVENTS, REWARD),
        ({Right.CALL, Right.REWARD}, EVENTS, {"event_type": "note"}),
    ],
)
async def test_a_token_allows_no_more_than_its_rights(anyone, api, served, log, rights, address, body):
    await create(api)

    answer = await anyone.post(address, headers=await token(log, rights=rights), json=body)

    assert answer.status_code == 403
    assert "does not allow" in answer.json()["detail"]


@pytest.mark.parametrize("event_type", ["model_request", "undelivered", "redelivered", "attempt_ended", "hooked"])
async def test_an_agent_cant_forge_what_services_record(anyone, api, served, log, event_type):
    await create(api)

    answer = await anyone.post(EVENTS, headers=await token(log), json={"event_type": event_type, "data": {}})

    assert answer.status_code == 403
    assert event_type in answer.json()["detail"]


async def test_a_token_of_another_deployment_is_worth_nothing(anyone, api, log):
    await create(api)
    location = await log.locate("r1")
    foreign = Authority("another-key").mint(AgentClaims("r1", location.nonce, "0"))

    assert (await anyone.post(CALL, headers={"x-api-key": foreign}, json=chat())).status_code == 401


async def test_a_token_does_not_outlive_its_rollout_when_the_id_is_used_again(anyone, api, served, log):
    await create(api)
    agent = await token(log)
    await anyone.post(CALL, headers=agent, json=chat())
    await api.delete("/api/rollouts/r1")
    assert (await anyone.post(CALL, headers=agent, json=chat())).status_code == 404
    await create(api)

    assert (await anyone.post(CALL, headers=agent, json=chat())).status_code == 409
    assert (await anyone.post(EVENTS, headers=agent, json=REWARD)).status_code == 409
    assert (await anyone.post(CALL, headers=await token(log), json=chat())).status_code == 200


async def test_a_later_attempt_fences_the_earlier_ones_token(anyone, api, served, log, default):
    await create(api)
    first, second = await token(log), await token(log, attempt="1")
    assert (await anyone.post(CALL, headers=first, json=chat())).status_code == 200
    await api.patch("/api/rollouts/r1", json={"status": {"state": "running", "last_attempt_id": "1"}})

    answer = await anyone.post(CALL, headers=first, json=chat())
    event = await anyone.post(EVENTS, headers=first, json=REWARD)
    new = await anyone.post(f"{proxy('r1', attempt='1')}/chat/completions", headers=second, json=chat())

    assert (answer.status_code, event.status_code, new.status_code) == (409, 409, 200)
    assert "attempt 1 has taken over" in answer.json()["detail"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_lost_while_it_ran_is_late_and_a_409(anyone, api, served, log, default: RunLog, stream):
    gate, started = asyncio.Event(), asyncio.Event()
    served.otherwise = stub.once(gate, started=started)
    await create(api)
    call = asyncio.create_task(anyone.post(CALL, headers=await token(log), json=chat(stream=stream)))
    await started.wait()
    await default.rollouts.patch("r1", StatusPatch(state=State.RUNNING))
    await default.rollouts.end("r1", State.FAILED, error="cancelled")
    gate.set()

    answer = await call

    if stream:
        assert "error" in answer.text
        assert "[DONE]" not in answer.text
    else:
        assert answer.status_code == 409
    assert await default.events.of_attempt("r1") == []
    kinds = [entry.kind for entry in await default.events.entries("r1")]
    assert kinds[-3:] == ["lost", "ended", "late"] or kinds[-3:] == ["ended", "lost", "late"]
    assert (await default.pause.state()).inflight == 0


async def test_calls_and_rewards_after_the_end_are_refused(anyone, api, served, log, default):
    await create(api)
    agent = await token(log)
    await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})

    assert (await anyone.post(CALL, headers=agent, json=chat())).status_code == 409
    assert (await anyone.post(EVENTS, headers=agent, json=REWARD)).status_code == 409
    assert (await api.post(EVENTS, json=REWARD)).status_code == 200


async def test_an_empty_key_lets_everyone_in(settings, model):
    open_settings = settings.model_copy(update={"key": type(settings.key)("")})
    async with serving(open_settings) as base, httpx.AsyncClient(base_url=base) as client:
        await client.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(client)
        assert (await client.post(CALL, json=chat(), headers={"authorization": "Bearer dummy"})).status_code == 200
        assert (await client.post(CALL, json=chat())).status_code == 200


def test_no_log_line_holds_a_key(capfd, settings):
    import logging

    import structlog

    from leyden_gateway import logs

    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    jwt = Authority(KEY).mint(AgentClaims("r1", "n", "0"))
    try:
        logs.configure(settings)
        structlog.get_logger().warning("refused", header=f"Bearer {KEY}", token=jwt, url="redis://:secret@host/0")
        try:
            raise ValueError(f"bad {KEY}")
        except ValueError as error:
            structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("uvicorn.error").warning("got %s and %s", KEY, jwt)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    written = capfd.readouterr().err

    assert written.count("***") >= 5
    assert KEY not in written
    assert jwt not in written
    assert "secret" not in written


def _routes(settings) -> list[tuple[str, str]]:
    """Every method and address of the OpenAPI document, with r1, attempt 0 and run default filled in."""
    values = {"rollout_id": "r1", "attempt": "0", "run": "default", "mode": "train", "path": "chat/completions"}
    values["response_id"] = "resp_1"
    document = create_app(settings).openapi()
    return [
        (method.upper(), re.sub(r"{(\w+)}", lambda match: values[match[1]], path))
        for path, methods in document["paths"].items()
        for method in methods
    ]


def _body(method: str, path: str):
    if path.endswith("/rollouts") or path.endswith("/models"):
        return []
    return {} if method in ("POST", "PUT", "PATCH") else None


async def test_an_agents_event_takes_no_services_place(anyone, api, log):
    await create(api)
    note = {"event_type": "note", "event_id": "attempt_ended-0"}
    agent = await token(log)
    for _ in range(2):
        assert (await anyone.post(EVENTS, headers=agent, json=note)).status_code == 200

    run = log.run("default")
    await run.events.append("r1", "0", "attempt_ended", {}, event_id="attempt_ended-0")

    assert [event.event_type for event in await run.events.of_attempt("r1", "0")] == ["note", "attempt_ended"]
