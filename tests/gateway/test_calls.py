"""One call: what goes upstream, what comes back, what stands on record."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from leyden.log import Log, RunLog, RunSettings
from leyden.schemas import Model
from leyden.triplet import to_triplet
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.stub import MODEL, TEXT, StubModel


async def calls_of(run: RunLog, rollout_id: str = "r1") -> list[dict[str, Any]]:
    """The data of the calls on record."""
    return [event.data for event in await run.events.of_attempt(rollout_id) if event.event_type == "model_request"]


async def post(api: httpx.AsyncClient, body: dict, *, path: str = "chat/completions", **more: Any) -> httpx.Response:
    """Make a call for rollout r1."""
    return await api.post(f"{proxy('r1', **more)}/{path}", json=body)


def payloads(text: str) -> list[bytes]:
    """The payloads of a stream."""
    return [line.removeprefix("data: ").encode() for line in text.split("\n\n") if line.startswith("data: ")]


def completion(prompt: str = "two and two is", **more: Any) -> dict:
    return {"model": "agent-model", "prompt": prompt, **more}


REQUESTS = [("chat/completions", chat()), ("completions", completion())]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_a_call_is_on_record_whole_when_it_is_answered_and_the_answer_holds_what_was_asked(
    api, served, default, path, body
):
    await create(api)

    answer = await post(api, body, path=path)

    (call,) = await calls_of(default)
    assert answer.status_code == 200
    assert "token_ids" not in answer.text
    assert all(choice["logprobs"] is None for choice in answer.json()["choices"])
    triplet = to_triplet(call)
    assert triplet["prompt_token_ids"] == stub.prompt_ids(body)
    assert triplet["response_token_ids"] == stub.token_ids(TEXT)
    assert len(triplet["response_log_probs"]) == 4
    assert call["request"] == served.requests[0]
    assert served.paths == [path]
    assert call["server"] == {"model": MODEL, "endpoint": served.url, "version": 7}
    assert (call["model"], call["model_version"], call["http_status"], call["status"]) == (MODEL, 7, 200, "ok")
    assert (call["retry_count"], call["finish_reason"], call["delivered"]) == (0, "stop", True)
    assert call["usage"] == answer.json()["usage"]
    assert call["latency_ms"] > 0


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_a_stream_records_the_same_event_as_the_call_without(api, served, default, path, body):
    await create(api)
    await post(api, body, path=path)

    streamed = await post(api, body | {"stream": True}, path=path)

    plain, other = await calls_of(default)
    assert payloads(streamed.text)[-1] == b"[DONE]"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert "token_ids" not in streamed.text
    assert '"usage"' not in streamed.text
    assert _bare(other["response"]) == _bare(plain["response"])
    same = set(plain) - {"response", "request", "latency_ms", "call_id"}
    assert {key: other[key] for key in same} == {key: plain[key] for key in same}
    assert other["request"] == plain["request"] | {"stream": True, "stream_options": {"include_usage": True}}


async def test_who_asks_for_ids_and_log_probs_gets_the_upstreams_answer_as_it_is(api, served):
    await create(api)

    answer = await post(api, chat(logprobs=True, return_token_ids=True))

    assert answer.json() == stub.chat_response(served.requests[0])


async def test_train_mode_captures_log_probs_and_val_mode_leaves_them(api, served, default):
    await create(api)
    await post(api, chat(temperature=0.2, top_p=0.5))
    await post(api, chat(temperature=0.2, top_p=0.5), mode="val")

    train, val = served.requests
    assert (train["model"], train["temperature"], train["top_p"], train["logprobs"]) == (MODEL, 1.0, 1.0, True)
    assert (val["model"], val["temperature"], val["top_p"]) == (MODEL, 0.7, 0.5)
    assert "logprobs" not in val
    assert train["return_token_ids"] is val["return_token_ids"] is True
    first, second = await calls_of(default)
    assert first["asked"] == {"model": "agent-model", "temperature": 0.2, "top_p": 0.5}
    assert second["asked"] == {"model": "agent-model", "temperature": 0.2}


@pytest.mark.parametrize("stream", [False, True])
async def test_every_one_of_n_choices_is_recorded(api, served, default, stream):
    await create(api)

    answer = await post(api, chat(n=3, stream=stream))

    assert answer.status_code == 200
    (call,) = await calls_of(default)
    assert [choice["token_ids"] for choice in call["response"]["choices"]] == [stub.token_ids(TEXT)] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_are_recorded_put_together(api, served, default, stream):
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
    served.otherwise = stub.answer("", tool_calls=[call], finish_reason="tool_calls")
    await create(api)

    await post(api, chat(stream=stream))

    (recorded,) = await calls_of(default)
    assert recorded["response"]["choices"][0]["message"]["tool_calls"] == [call]
    assert recorded["finish_reason"] == "tool_calls"


async def test_routed_experts_are_recorded_beside_the_response_and_kept_from_the_agent(api, served, log, default):
    await log.runs.begin("default", RunSettings(model=MODEL, return_routed_experts=True))
    served.otherwise = stub.answer(change=lambda response: response["choices"][0].update(routed_experts="AAAA"))
    await create(api)

    answer = await post(api, chat())

    (call,) = await calls_of(default)
    assert served.requests[0]["return_routed_experts"] is True
    assert call["routed_experts"] == "AAAA"
    assert "routed_experts" not in answer.text
    assert "routed_experts" not in call["response"]["choices"][0]


async def test_a_stream_is_live_and_its_end_waits_for_the_record(api, served, default):
    gates = [asyncio.Event() for _ in range(3)]
    served.otherwise = stub.paced(gates)
    await create(api)
    seen: list[str] = []

    async with api.stream("POST", f"{proxy('r1')}/chat/completions", json=chat(stream=True)) as answer:
        lines = answer.aiter_lines()
        while not any('"the "' in line for line in seen):
            seen.append(await anext(lines))
        assert await calls_of(default) == []
        assert not any("[DONE]" in line or '"stop"' in line for line in seen)
        for gate in gates:
            gate.set()
        async for line in lines:
            if '"stop"' in line:
                assert len(await calls_of(default)) == 1
            seen.append(line)

    assert "".join(_content(line) for line in seen) == TEXT


async def test_the_upstreams_own_refusal_reaches_the_agent_and_is_recorded_as_an_error(api, served, default):
    refusal = {"error": {"message": "max_tokens must be at least 1", "type": "BadRequestError", "code": 400}}
    served.otherwise = stub.status(400, refusal)
    await create(api)

    for stream in (False, True):
        answer = await post(api, chat(stream=stream))
        assert (answer.status_code, answer.json()) == (400, refusal)

    for call in await calls_of(default):
        assert (call["http_status"], call["status"], call["response"]) == (400, "error", refusal)
    assert len(served.requests) == 2


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503])
async def test_what_may_pass_is_tried_again(api, served, default, code):
    served.scripts = [stub.status(code), stub.status(code)]
    await create(api)

    answer = await post(api, chat())

    assert answer.status_code == 200
    (call,) = await calls_of(default)
    assert call["retry_count"] == 2


async def test_after_six_tries_the_upstreams_own_answer_is_the_answer(api, served, default):
    served.otherwise = stub.status(500)
    await create(api)

    answer = await post(api, chat())

    assert (answer.status_code, answer.json()) == (500, {"error": {"message": "scripted 500"}})
    (call,) = await calls_of(default)
    assert (call["retry_count"], call["status"], len(served.requests)) == (5, "error", 6)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_breaks_six_times_is_a_502_on_record(api, served, default, stream):
    served.otherwise = stub.drop()
    await create(api)

    answer = await post(api, chat(stream=stream))

    assert answer.status_code == 502
    assert served.url in answer.json()["detail"]
    (call,) = await calls_of(default)
    assert (call["http_status"], call["status"], call["retry_count"]) == (502, "error", 5)


async def test_an_upstream_that_stays_silent_is_a_504_on_record(settings, redis_url, model, log):
    hasty = settings.model_copy(update={"upstream_timeout_seconds": 0.1, "upstream_tries": 2})
    model.otherwise = stub.once(asyncio.Event())
    async with serving(hasty) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as api:
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(api)
        answer = await post(api, chat())

    assert answer.status_code == 504
    (call,) = await calls_of(log.run("default"))
    assert (call["http_status"], call["status"], call["retry_count"]) == (504, "error", 1)


async def test_a_stream_that_breaks_before_its_first_token_is_tried_again_unseen(api, served, default):
    served.scripts = [stub.events(cut=True), stub.drop(), stub.status(503)]
    await create(api)

    answer = await post(api, chat(stream=True))

    assert payloads(answer.text)[-1] == b"[DONE]"
    (call,) = await calls_of(default)
    assert (call["status"], call["retry_count"]) == ("ok", 3)


async def test_an_upstream_that_always_aborts_is_an_error_in_the_end(api, served, default):
    served.otherwise = stub.answer("the", finish_reason="abort")
    await create(api)

    answer = await post(api, chat())

    assert answer.status_code == 502
    assert [call["delivered"] for call in await calls_of(default)] == [False] * 6


async def test_a_server_without_ids_is_no_error(api, served, default):
    def plain(response: dict) -> None:
        response.pop("prompt_token_ids")
        for choice in response["choices"]:
            choice.pop("token_ids")
            choice.pop("logprobs")

    served.otherwise = stub.answer(change=plain)
    await create(api)

    assert (await post(api, chat())).status_code == 200
    (call,) = await calls_of(default)
    assert to_triplet(call)["response_token_ids"] == []


async def test_a_failing_endpoint_is_passed_over(api, served, default):
    async with StubModel() as other:
        other.otherwise = served.otherwise = stub.answer()
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": other.url}])
        for number in range(8):
            await create(api, f"r{number}")
        await asyncio.gather(*(api.post(f"{proxy(f'r{n}')}/chat/completions", json=chat()) for n in range(8)))
        assert served.requests
        assert other.requests
        other.otherwise = stub.drop()

        answers = [await api.post(f"{proxy(f'r{n}')}/chat/completions", json=chat()) for n in range(8)]

    assert [answer.status_code for answer in answers] == [200] * 8


async def test_without_a_server_the_answer_is_503(api, default):
    await create(api)

    answer = await post(api, chat())

    assert (answer.status_code, answer.json()["detail"]) == (503, f"No servers available for model '{MODEL}'")
    assert (await default.pause.state()).inflight == 0


@pytest.mark.parametrize(
    ("address", "status", "named"),
    [
        ("/proxy/rollout/none/attempt/0/mode/train/openai/v1/chat/completions", 404, "Rollout not found: none"),
        ("/proxy/rollout/r1/attempt/0/mode/test/openai/v1/chat/completions", 404, "Unsupported proxy mode: test"),
        ("/proxy/rollout/r1/attempt/0/mode/val/openai/v1/embeddings", 404, "Unsupported upstream path: embeddings"),
        ("/proxy/rollout/r1/attempt/a b/mode/val/openai/v1/completions", 400, "'a b' is not a valid attempt id"),
        ("/proxy/rollout/r1", 404, "/proxy/rollout/r1"),
    ],
)
async def test_a_wrong_address_is_named(api, served, address, status, named):
    await create(api)

    answer = await api.post(address, json=chat())

    assert answer.status_code == status
    assert named in answer.json()["detail"]
    assert served.requests == []


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{oops", "oops"),
        (b"[1]", "[1]"),
        (b'"text"', "text"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"x": "\xff"}', "Invalid JSON"),
        (b'{"x": ' + b"[" * 300 + b"]" * 300 + b"}", "deeper than 200"),
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400_that_shows_it(api, served, data, named):
    await create(api)

    answer = await api.post(f"{proxy('r1')}/chat/completions", content=data)

    assert answer.status_code == 400
    assert named in answer.json()["detail"]


async def test_a_body_over_the_limit_is_a_413(settings, redis_url, log):
    small = settings.model_copy(update={"max_body_bytes": 1000})
    async with serving(small) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as api:
        await create(api)
        for address in (f"{proxy('r1')}/chat/completions", "/api/rollouts"):
            announced = await api.post(address, content=b"x" * 1001)
            chunked = await api.post(address, content=_parts())
            for answer in (announced, chunked):
                assert answer.status_code == 413
                assert "1000 bytes" in answer.json()["detail"]


async def _parts():
    for _ in range(3):
        yield b"x" * 500


async def test_a_client_that_probes_for_models_is_answered_and_not_recorded(api, served, default):
    await create(api)

    listed = await api.get(f"{proxy('r1')}/models")
    one = await api.get(f"{proxy('r1')}/models/{MODEL}")
    none = await api.get(f"{proxy('r1')}/models/gpt-9")

    assert [card["id"] for card in listed.json()["data"]] == [MODEL]
    assert one.json()["id"] == MODEL
    assert (none.status_code, "gpt-9" in none.json()["detail"]) == (404, True)
    assert (await api.get(f"{proxy('r1')}/chat/completions")).status_code == 405
    assert await calls_of(default) == []


async def test_a_run_without_a_model_name_leaves_the_agents(api, model, log: Log):
    await log.runs.begin("free", RunSettings())
    await api.post("/api/runs/free/models", json=[{"model": "agent-model", "endpoint": model.url}])
    await api.post("/api/runs/free/rollouts", json=[{"rollout_id": "r1", "input": 1}])

    assert (await post(api, chat())).status_code == 200
    assert model.requests[0]["model"] == "agent-model"


async def test_large_prompts_pass(api, served, default):
    await create(api)
    content = " ".join(f"w{number}" for number in range(60_000))

    assert (await post(api, chat(content))).status_code == 200
    (call,) = await calls_of(default)
    assert len(call["response"]["prompt_token_ids"]) == 60_001


def _content(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    return "".join(choice["delta"].get("content") or "" for choice in orjson.loads(line[6:])["choices"])


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items() if each is not None}
    return [_bare(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://:0/v1", "http://x:99999/v1"])
async def test_an_endpoint_that_is_no_address_is_not_registered(api, endpoint):
    registered = await api.post("/api/models", json=[{"model": MODEL, "endpoint": endpoint}])

    assert registered.status_code == 422
    assert endpoint in registered.text


@pytest.mark.parametrize("endpoint", ["http://0/v1", "http://no-such-host.invalid/v1"])
async def test_an_endpoint_that_is_no_address_is_a_502_that_names_it(api, default, endpoint):
    await create(api)
    registered = await api.post("/api/models", json=[{"model": MODEL, "endpoint": endpoint}])
    assert registered.status_code == 201

    answer = await post(api, chat())

    assert answer.status_code == 502
    assert endpoint in answer.json()["detail"]
    (call,) = await calls_of(default)
    assert call["status"] == "error"


async def test_a_stream_is_kept_alive_while_upstream_thinks_and_can_still_fail_honestly(settings, log, model):
    lively = settings.model_copy(update={"keep_alive_seconds": 0.1})
    async with serving(lively) as base, httpx.AsyncClient(base_url=base, headers=ADMIN) as api:
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(api)
        for script, end in ((stub.answer(), b"[DONE]"), (stub.status(400), b"scripted 400")):
            gate = asyncio.Event()
            model.scripts = [stub.once(gate, script)]
            asyncio.get_running_loop().call_later(0.35, gate.set)
            answer = await post(api, chat(stream=True))
            assert answer.text.startswith(": keep-alive\n\n")
            *_, last = payloads(answer.text)
            assert end in last

    done, refused = await calls_of(log.run("default"))
    assert (done["status"], refused["status"], refused["http_status"]) == ("ok", "error", 400)


async def test_a_servers_password_is_for_the_gateway_alone(api, default):
    await create(api)
    await default.models.add([Model(model=MODEL, endpoint="http://svc:S3CRET@127.0.0.1:1/v1")])

    answer = await post(api, chat())

    (call,) = await calls_of(default)
    assert answer.status_code == 502
    assert "http://127.0.0.1:1/v1" in answer.text
    assert call["server"]["endpoint"] == "http://127.0.0.1:1/v1"
    assert "S3CRET" not in answer.text + str(call)
