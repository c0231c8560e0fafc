"""The API's routes beside model calls: what they give, and what they refuse, by name."""

from __future__ import annotations

import pytest

from leyden.log import RunSettings
from tests.gateway import stub
from tests.gateway.conftest import chat, create, proxy
from tests.gateway.stub import MODEL

EVENTS = "/api/rollouts/r1/attempt/0/events"


async def test_creation_gives_the_contracts_defaults_and_is_idempotent(api):
    first = (await api.post("/api/rollouts", json=[{"input": {"data_id": "d"}, "rollout_id": "r1"}])).json()[0]
    await api.patch("/api/rollouts/r1", json={"status": {"state": "running"}})

    again = await api.post("/api/rollouts", json=[{"input": "other", "rollout_id": "r1"}, {"input": None}])

    assert again.status_code == 201
    stored, made = again.json()
    assert first["config"]["timeout_seconds"] == 3600
    assert (first["config"]["local"], first["config"]["k8s"]) == (None, None)
    assert first["metadata"] == {"batch_idx": None, "sample_idx_in_batch": None}
    assert first["is_train"] is True
    assert first["status"] | {"created_at": 0, "updated_at": 0} == {
        "state": "queuing",
        "k8s_job_name": None,
        "last_attempt_id": None,
        "error_message": None,
        "version": 1,
        "created_at": 0,
        "updated_at": 0,
    }
    assert (stored["input"], stored["status"]["state"], stored["status"]["version"]) == ({"data_id": "d"}, "running", 2)
    assert (made["input"], len(made["rollout_id"]) > 8) == (None, True)


async def test_lists_are_oldest_first_and_by_state(api):
    for name in ("a", "b", "c"):
        await create(api, name)
    await api.patch("/api/rollouts/b", json={"status": {"state": "running"}})

    both = await api.get("/api/rollouts", params={"state_in": ["queuing", "running"]})
    some = await api.get("/api/rollouts", params={"state_in": "queuing", "limit": 1})

    assert [rollout["rollout_id"] for rollout in both.json()] == ["a", "b", "c"]
    assert [rollout["rollout_id"] for rollout in some.json()] == ["a"]


async def test_finished_rollouts_page_in_completion_order(api):
    await api.post(
        "/api/rollouts",
        json=[
            {"rollout_id": "a", "input": {"data_id": "d"}},
            {"rollout_id": "b", "input": {"instance_id": 7}, "is_train": False},
            {"rollout_id": "c", "input": "text"},
        ],
    )
    for name in ("c", "a", "b"):
        await api.patch(f"/api/rollouts/{name}", json={"status": {"state": "failed"}})

    page = (await api.get("/api/rollouts/terminal", params={"after": -5, "limit": 2})).json()
    rest = (await api.get("/api/rollouts/terminal", params={"after": page["next_after"]})).json()
    none = (await api.get("/api/rollouts/terminal", params={"after": rest["next_after"]})).json()

    assert page["items"] == [
        {"rollout_id": "c", "state": "failed", "data_id": "", "is_train": True},
        {"rollout_id": "a", "state": "failed", "data_id": "d", "is_train": True},
    ]
    assert rest["items"] == [{"rollout_id": "b", "state": "failed", "data_id": "7", "is_train": False}]
    assert (page["next_after"], page["total_terminal"]) == (2, 3)
    assert none == {"items": [], "next_after": 3, "total_terminal": 3}


async def test_a_patch_follows_the_contracts_transitions(api):
    await create(api)

    async def patch(**status: object):
        return await api.patch("/api/rollouts/r1", json={"status": status})

    assert (await patch()).json()["status"]["version"] == 1
    assert (await api.patch("/api/rollouts/r1", json={})).json()["status"]["version"] == 1
    assert (await patch(state="succeeded")).status_code == 409
    running = (await patch(state="running", k8s_job_name="job", last_attempt_id="0")).json()["status"]
    assert (running["state"], running["k8s_job_name"], running["last_attempt_id"]) == ("running", "job", "0")
    assert (await patch(state="queuing")).status_code == 409
    ended = (await patch(state="succeeded", error_message="fine")).json()["status"]
    assert (ended["state"], ended["error_message"], ended["version"]) == ("succeeded", "fine", 3)
    refused = await patch(state="failed")
    assert (refused.status_code, "succeeded -> failed" in refused.json()["detail"]) == (409, True)


async def test_a_rollouts_attempts_are_those_with_events(api):
    await create(api)
    for attempt in ("1", "0", "1"):
        await api.post(f"/api/rollouts/r1/attempt/{attempt}/events", json={"event_type": "note", "data": {"x": 1}})

    detail = (await api.get("/api/rollouts/r1")).json()

    assert detail["attempts"] == ["1", "0"]
    assert detail["rollout"]["rollout_id"] == "r1"


async def test_events_are_the_last_attempts_filtered_and_trimmed(api, served):
    await create(api)
    await api.post(f"{proxy('r1')}/chat/completions", json=chat("first"))
    await api.post(f"{proxy('r1')}/chat/completions", json=chat("first"))
    await api.post(f"{proxy('r1')}/completions", json={"prompt": "second"})
    posted = await api.post(EVENTS, json={"event_type": "reward", "data": {"value": 1, "message": "m", "source": "s"}})
    await api.post("/api/rollouts/r1/attempt/9/events", json={"event_type": "note"})

    events = (await api.get("/api/rollouts/r1/events")).json()
    rewards = (await api.get("/api/rollouts/r1/events", params={"event_type": "reward"})).json()
    triplets = (await api.get("/api/rollouts/r1/events", params={"format": "triplet"})).json()
    other = (await api.get("/api/rollouts/r1/events", params={"attempt": "9"})).json()

    assert [event["event_type"] for event in events] == ["model_request"] * 3 + ["reward"]
    assert rewards == [posted.json()]
    assert [event["data"].get("prompt_token_ids") for event in triplets] == [
        stub.token_ids("user first"),
        stub.token_ids("second"),
        None,
    ]
    assert triplets[-1]["data"] == {"value": 1, "source": "s"}
    assert [event["event_type"] for event in other] == ["note"]


async def test_an_event_with_an_id_is_appended_once(api):
    await create(api)
    body = {"event_type": "score", "data": {"x": 1}, "event_id": "hook-1"}

    first, again = await api.post(EVENTS, json=body), await api.post(EVENTS, json=body)

    assert first.json() == again.json()
    assert len((await api.get("/api/rollouts/r1/events")).json()) == 1


async def test_delete_hides_a_rollout_and_asks_no_questions(api, served):
    await create(api)

    assert (await api.delete("/api/rollouts/r1")).status_code == 204
    assert (await api.delete("/api/rollouts/r1")).status_code == 204
    for path in ("/api/rollouts/r1", "/api/rollouts/r1/events"):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Rollout not found: r1"})
    assert (await api.post(EVENTS, json={"event_type": "note"})).status_code == 404
    assert (await api.patch("/api/rollouts/r1", json={"status": {"state": "failed"}})).status_code == 404
    assert (await api.post(f"{proxy('r1')}/completions", json={})).json()["detail"] == "Rollout not found: r1"


async def test_models_are_upserted_and_cleared(api):
    one = {"model": "m", "endpoint": "http://a/v1", "version": 0}
    answer = await api.post("/api/models", json=[{"model": "m", "endpoint": "http://a/v1"}])
    await api.post("/api/models", json=[one | {"version": 3}, one | {"endpoint": "http://b/v1"}])

    assert (answer.status_code, answer.json()) == (201, [one])
    listed = (await api.get("/api/models")).json()
    assert [(each["endpoint"], each["version"]) for each in listed] == [("http://a/v1", 3), ("http://b/v1", 0)]
    assert (await api.delete("/api/models")).json() == {"status": "ok"}
    assert (await api.get("/api/models")).json() == []


async def test_runs_keep_their_rollouts_models_and_pauses_apart(api, log):
    settings = {"model": "m", "when_paused": "hold"}
    assert (await api.put("/api/runs/one", json=settings)).json()["settings"]["when_paused"] == "hold"
    await log.runs.begin("two", RunSettings())
    await api.post("/api/runs/one/rollouts", json=[{"rollout_id": "a", "input": 1}])
    await api.post("/api/runs/one/models", json=[{"model": "m", "endpoint": "http://a/v1"}])
    await api.post("/api/runs/one/pause", json={"reason": "update"})

    assert {"default", "one", "two"} <= set((await api.get("/api/runs")).json())
    assert (await api.get("/api/runs/one/state")).json()["paused"] is True
    assert (await api.get("/api/runs/two/state")).json()["paused"] is False
    assert (await api.get("/proxy/state")).json()["paused"] is False
    assert (await api.get("/api/runs/two/models")).json() == []
    assert (await api.get("/api/runs/two/rollouts", params={"state_in": "queuing"})).json() == []
    assert (await api.get("/api/runs/one")).json()["rollouts"]["queuing"] == 1
    assert (await api.get("/api/rollouts/a")).status_code == 200
    taken = await api.post("/api/runs/two/rollouts", json=[{"rollout_id": "a", "input": 1}])
    assert (taken.status_code, "run one" in taken.json()["detail"]) == (409, True)
    differs = await api.post(
        "/api/runs/one/rollouts", params={"must_match": True}, json=[{"rollout_id": "a", "input": 2}]
    )
    assert differs.status_code == 409
    assert (await api.get("/api/runs/three")).json() == {"detail": "Run not found: three"}
    await api.delete("/api/runs/two")
    assert (await api.post("/api/runs/two/rollouts", json=[{"input": 1}])).status_code == 404


async def test_health_readiness_and_metrics(api, served):
    await create(api)
    await api.post(f"{proxy('r1')}/chat/completions", json=chat())

    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.get("/readyz")).status_code == 200
    metrics = (await api.get("/metrics")).text
    assert 'leyden_gateway_calls_total{outcome="ok",protocol="chat/completions"}' in metrics


BAD = [
    ("POST", "/api/rollouts", {"input": 1}, "list"),
    ("POST", "/api/rollouts", [{"is_train": True}], "input"),
    ("POST", "/api/rollouts", [{"input": 1, "is_train": "perhaps"}], "perhaps"),
    ("POST", "/api/rollouts", [{"input": 1, "rollout_id": "a/b"}], "a/b"),
    ("POST", "/api/rollouts", [{"input": 1, "rollout_id": 7}], "7"),
    ("POST", "/api/rollouts", [{"input": 1, "config": {"timeout_seconds": -1}}], "-1"),
    ("POST", "/api/rollouts", [{"input": 1, "config": {"time_out": 5}}], "time_out"),
    ("POST", "/api/rollouts", [{"input": 1, "config": {"local": {"agent": "x"}}}], "agent"),
    ("GET", "/api/rollouts", None, "state_in"),
    ("GET", "/api/rollouts?state_in=sleeping", None, "sleeping"),
    ("GET", "/api/rollouts?state_in=queuing&limit=-1", None, "-1"),
    ("GET", "/api/rollouts/terminal?after=99999999999999999999999", None, "99999999999999999999999"),
    ("GET", "/api/rollouts/terminal?after=x", None, "x"),
    ("PATCH", "/api/rollouts/r1", {"status": {"state": "sleeping"}}, "sleeping"),
    ("PATCH", "/api/rollouts/r1", {"status": {"staet": "failed"}}, "staet"),
    ("PATCH", "/api/rollouts/r1", {"input": 2}, "input"),
    ("POST", EVENTS, {"data": {}}, "event_type"),
    ("POST", EVENTS, {"event_type": "reward", "data": {"value": "high"}}, "high"),
    ("POST", EVENTS, {"event_type": "reward", "data": {"value": True}}, "True"),
    ("POST", EVENTS, {"event_type": "reward", "data": {"value": None}}, "None"),
    ("POST", EVENTS, {"event_type": "reward"}, "None"),
    ("POST", EVENTS, {"event_type": "note", "data": [1]}, "data"),
    ("POST", "/api/rollouts/r1/attempt/a%20b/events", {"event_type": "note"}, "a b"),
    ("GET", "/api/rollouts/r1/events?format=yaml", None, "yaml"),
    ("POST", "/api/models", [{"model": "m", "endpoint": "host:1"}], "host:1"),
    ("POST", "/api/models", [{"model": "m", "endpoint": "http://a/v1", "version": [1]}], "[1]"),
    ("POST", "/proxy/pause", {"retry_after_seconds": "soon"}, "soon"),
    ("PUT", "/api/runs/x", {"when_paused": "sleep"}, "sleep"),
    ("PUT", "/api/runs/x", {"model_name": "m"}, "model_name"),
    ("PUT", "/api/runs/a:b", {}, "a:b"),
]


@pytest.mark.parametrize(("method", "path", "body", "named"), BAD)
async def test_what_is_wrong_is_named(api, method, path, body, named):
    await create(api)

    answer = await api.request(method, path, json=body)

    assert answer.status_code == 422, answer.text
    assert named in answer.text


@pytest.mark.parametrize(
    ("path", "data", "named"),
    [
        ("/api/rollouts", b'[{"input": NaN}]', "NaN"),
        ("/api/rollouts", b'[{"input": 1e999}]', "1e999"),
        ("/api/rollouts", b'[{"input": "\\ud800"}]', "ud800"),
        ("/api/rollouts", b'[{"input": ', "JSON"),
        (EVENTS, b'{"event_type": "reward", "data": {"value": NaN}}', "NaN"),
        (EVENTS, b'{"event_type": "reward", "data": {"value": -Infinity}}', "Infinity"),
        ("/api/rollouts", b'[{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}]", "JSON"),
    ],
)
async def test_what_is_no_json_is_refused(api, path, data, named):
    await create(api)

    answer = await api.post(path, content=data, headers={"content-type": "application/json"})

    assert answer.status_code == 422, answer.text
    assert named in answer.text


@pytest.mark.parametrize("depth", [100, 200, 400, 900])
async def test_deep_input_is_kept_or_refused_but_never_a_500(api, depth):
    data = b'[{"rollout_id": "r1", "input": ' + b"[" * depth + b"1" + b"]" * depth + b"}]"

    answer = await api.post("/api/rollouts", content=data, headers={"content-type": "application/json"})

    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 201:
        assert (await api.get("/api/rollouts/r1")).status_code == 200


async def test_models_of_the_default_run_serve_its_calls_only(api, served, log):
    await log.runs.begin("other", RunSettings(model=MODEL))
    await api.post("/api/runs/other/rollouts", json=[{"rollout_id": "r1", "input": 1}])

    assert (await api.post(f"{proxy('r1')}/chat/completions", json=chat())).status_code == 503
