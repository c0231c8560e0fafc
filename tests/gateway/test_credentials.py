"""An attempt's credential tried on everything that is not its attempt's, and credentials that are none any more."""

from __future__ import annotations

import base64
import itertools
import json
import logging

import httpx
import jwt
import orjson
import pytest
import structlog

from leyden.auth import AgentClaims, Authority, Right
from leyden.concealing import Concealer, password_of
from leyden.log import Log, RunSettings
from leyden_gateway import logs
from leyden_gateway.__main__ import main
from leyden_gateway.app import create_app
from leyden_gateway.settings import GatewaySettings
from tests.gateway.conftest import KEY, chat, create
from tests.gateway.stub import MODEL

OPEN = ("/healthz", "/readyz")
OWN = {"rollout_id": "r1", "attempt": "0", "run": "default", "mode": "train", "response_id": "resp_1"}
REFUSED = (401, 403, 404, 405, 409)
REWARD = {"event_type": "reward", "data": {"value": 1.0}}


def headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


async def claims(log: Log, rollout_id: str = "r1", attempt: str = "0") -> AgentClaims:
    return AgentClaims(rollout_id, (await log.locate(rollout_id)).nonce, attempt)


def addresses(settings: GatewaySettings, **named: str) -> list[tuple[str, str]]:
    """Every address of the OpenAPI document and some that it leaves out, each with every verb."""
    paths = [*create_app(settings).openapi()["paths"], "/openapi.json", "/docs", "/proxy/rollout/r2", "/"]
    return [
        (verb, path.format(**(OWN | named)))
        for path, verb in itertools.product(paths, ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
    ]


def is_own(path: str) -> bool:
    return path.startswith("/proxy/rollout/r1/attempt/0/") or path == "/api/rollouts/r1/attempt/0/events"


def body(verb: str, path: str) -> bytes | None:
    """A body that the route would take."""
    if verb not in ("POST", "PUT", "PATCH"):
        return None
    if path.endswith("/rollouts"):
        return orjson.dumps([{"input": 1, "rollout_id": "forged"}])
    if path.endswith("/models") and "/proxy/" not in path:
        return orjson.dumps([{"model": MODEL, "endpoint": "http://evil.example/v1"}])
    if path.endswith("/events"):
        return orjson.dumps(REWARD)
    if path.startswith("/api/rollouts/"):
        return orjson.dumps({"status": {"state": "failed"}})
    if "/responses" in path:
        return orjson.dumps({"model": "m", "input": "x"})
    return orjson.dumps(chat() | {"max_tokens": 5} if "/proxy/rollout/" in path else {})


@pytest.fixture
async def anyone(url: str):
    """A client without credentials of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield client


async def assert_refused(anyone: httpx.AsyncClient, verb: str, path: str, token: str) -> None:
    answer = await anyone.request(verb, path, headers=headers(token), content=body(verb, path))
    assert answer.status_code in REFUSED, (verb, path, answer.status_code, answer.text)


async def test_an_attempt_s_token_opens_nothing_but_its_own_attempt(anyone, api, served, settings, log, default):
    await create(api)
    await create(api, "r2")
    token = Authority(KEY).mint(await claims(log))
    everything = set(addresses(settings))
    for other in ({"rollout_id": "r2"}, {"attempt": "1"}, {"rollout_id": "none"}, {"rollout_id": "r1%2F..%2Fr2"}):
        everything |= set(addresses(settings, **other))

    for verb, path in sorted(everything):
        if path not in OPEN and not is_own(path):
            await assert_refused(anyone, verb, path, token)

    assert len(everything) > 300
    assert served.requests == []
    assert [each.rollout_id for each in await default.rollouts.in_states(["queuing"], 9)] == ["r1", "r2"]
    assert [model.endpoint for model in await default.models.all()] == [served.url]
    assert not (await default.pause.state()).paused


async def test_tokens_that_are_none_any_more_open_nothing_at_all(anyone, api, served, settings, log, default):
    await create(api)
    genuine = await claims(log)
    authority = Authority(KEY)
    payload = jwt.decode(authority.mint(genuine), options={"verify_signature": False})
    head, middle, tail = authority.mint(genuine).split(".")
    unsigned = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    admin_like = jwt.encode(payload | {"rights": ["call", "admin"]}, authority._signing_key, algorithm="HS256")
    recreated = authority.mint(genuine)
    await api.delete("/api/rollouts/r1")
    await create(api)
    fenced = authority.mint(await claims(log))
    await api.patch("/api/rollouts/r1", json={"status": {"state": "running", "last_attempt_id": "1"}})
    worthless = {
        "garbage": "garbage",
        "no text": "\xff\xfe",
        "another deployment's": Authority("another").mint(genuine),
        "signed by the admin key itself": jwt.encode(payload, KEY, algorithm="HS256"),
        "alg none": f"{unsigned}.{middle}.",
        "alg none, old signature": f"{unsigned}.{middle}.{tail}",
        "no signature": f"{head}.{middle}.",
        "another hash": jwt.encode(payload, authority._signing_key, algorithm="HS512"),
        "another issuer": jwt.encode(payload | {"iss": "x"}, authority._signing_key, algorithm="HS256"),
        "without a nonce": jwt.encode(
            {name: value for name, value in payload.items() if name != "nonce"},
            authority._signing_key,
            algorithm="HS256",
        ),
        "unknown rights": admin_like,
        "of a rollout that was deleted and created again": recreated,
        "of an earlier attempt": fenced,
    }

    for verb, path in sorted(set(addresses(settings))):
        if path in OPEN:
            continue
        for what, token in worthless.items():
            raw = [(b"authorization", b"Bearer " + token.encode("latin-1")), (b"content-type", b"application/json")]
            answer = await anyone.request(verb, path, headers=raw, content=body(verb, path))
            assert answer.status_code in REFUSED, (what, verb, path, answer.status_code, answer.text)

    assert served.requests == []
    assert await default.events.of_attempt("r1", "0") == []


async def test_a_token_ends_with_its_rollout(anyone, api, served, log):
    await create(api)
    token = Authority(KEY).mint(await claims(log))
    models = "/proxy/rollout/r1/attempt/0/mode/train/openai/v1/models"
    assert (await anyone.get(models, headers=headers(token))).status_code == 200
    await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})

    assert (await anyone.get(models, headers=headers(token))).status_code == 409
    assert (await api.get(models)).status_code == 200


async def test_a_run_may_forbid_its_agents_to_report_rewards(anyone, api, served, log, default):
    await create(api)
    token = headers(Authority(KEY).mint(await claims(log)))
    address = "/api/rollouts/r1/attempt/0/events"
    assert (await anyone.post(address, headers=token, json=REWARD)).status_code == 200
    await default.set_settings(RunSettings(model=MODEL, agents_may_reward=False))
    while (await anyone.post(address, headers=token, json=REWARD)).status_code == 200:
        pass  # a replica may take a second to hear of new rules

    refused = await anyone.post(address, headers=token, json=REWARD)

    assert (refused.status_code, refused.json()["detail"]) == (403, "run default does not let agents post rewards")
    assert (await anyone.post(address, headers=token, json={"event_type": "note"})).status_code == 200
    assert (await api.post(address, json=REWARD)).status_code == 200


async def test_a_token_without_the_right_to_reward_is_refused(anyone, api, log):
    await create(api)
    genuine = await claims(log)
    token = Authority(KEY).mint(AgentClaims("r1", genuine.nonce, "0", rights=frozenset({Right.CALL, Right.EVENT})))

    answer = await anyone.post("/api/rollouts/r1/attempt/0/events", headers=headers(token), json=REWARD)

    assert (answer.status_code, answer.json()["detail"]) == (403, "this key does not allow to post rewards")


@pytest.mark.parametrize("key", ["k3y-of-mine", 'with "quotes" and \\', "schlüssel/+&="])
def test_no_line_holds_a_secret_however_it_is_passed(capfd, settings, key, monkeypatch):
    url = "redis://leyden:p%40ss-word@redis.internal:6379/0"
    monkeypatch.setenv("LEYDEN_KEY", key)
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    token = Authority(key).mint(AgentClaims("r1", "n", "0"))
    try:
        logs.configure(settings.model_copy(update={"key": type(settings.key)(key), "redis_url": url}))
        say = structlog.get_logger()
        say.warning("nested", deep={"a": [{"key": key}, (token, url)]}, raw=key.encode())
        say.warning("queries", path=f"/api/rollouts?key={key}&x=1", other="GET /x?api_key=abcdef HTTP/1.1")
        say.warning("headers", headers={"authorization": f"Bearer {key}", "x-api-key": "someone-elses"})
        say.warning(f"in the text {key} and p@ss-word")
        try:
            raise ConnectionError(f"could not connect to {url} with {key}")
        except ConnectionError:
            say.exception("failed", environment={"LEYDEN_KEY": key, "LEYDEN_REDIS_URL": url})
        logging.getLogger("uvicorn.access").warning('"GET /healthz?key=%s" 200', key)
        logging.getLogger("aiohttp").error("%s", {"Authorization": f"Bearer {token}"})
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    written = capfd.readouterr().err

    for line in written.splitlines():
        json.loads(line)
    for secret in (key, json.dumps(key)[1:-1], token, "p@ss-word", "p%40ss-word", "abcdef", "someone-elses"):
        assert secret not in written, secret
    assert "redis.internal" in written


def test_the_longer_of_two_secrets_is_hidden_whole():
    assert Concealer("abc", "abcdef").conceal("it is abcdef, not abc") == "it is ***, not ***"


def test_a_url_that_is_none_has_no_password():
    assert [password_of(url) for url in ("redis://:a%20b@h/0", "redis://h/0", "redis://[x", "")] == ["a b", "", "", ""]


@pytest.mark.parametrize("arguments", [["--key", "hush"], ["--key=hush"], ["--leyden-key", "hush"], ["--agl-key=hush"]])
def test_a_key_on_the_command_line_stops_the_start_and_is_not_repeated(arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert "LEYDEN_KEY" in str(stopped.value.code)
    assert "hush" not in str(stopped.value.code)
