"""Rollouts that could not be reached, started or recorded are refused when they are created, by the name at fault."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import create


@pytest.mark.parametrize(
    ("rollout", "named"),
    [
        ({"rollout_id": "terminal"}, ["rollout_id", "'terminal'"]),
        ({"config": {"local": {"command": "run\0me"}}}, ["command", "NUL"]),
        ({"config": {"local": {"command": ["run", "m\0e"]}}}, ["command", "NUL"]),
        ({"config": {"local": {"agent_class": "a\0.B"}}}, ["agent_class", "NUL"]),
        ({"config": {"local": {"command": "x", "cwd": "/\0"}}}, ["cwd", "NUL"]),
        ({"config": {"local": {"command": "x", "env_map": {"AGL_KEY": "mine"}}}}, ["env_map", "AGL_KEY"]),
        (
            {"config": {"local": {"command": "x", "env_map": {"AGL_EVENT_URL": "x", "AGL_OPENAI_BASE_URL": "y"}}}},
            ["env_map", "AGL_EVENT_URL, AGL_OPENAI_BASE_URL"],
        ),
    ],
)
async def test_what_cant_work_is_422_and_says_why(api, rollout, named):
    answer = await api.post("/api/rollouts", json=[{"input": 1} | rollout])

    assert answer.status_code == 422
    for name in named:
        assert name in answer.text


async def test_a_rollout_may_bring_its_own_provider_s_variables(api):
    variables = {"OPENAI_API_KEY": "sk-judge", "OPENAI_BASE_URL": "https://api.openai.com/v1", "LEYDEN_X": "input"}

    await create(api, config={"local": {"command": "x", "env_map": variables}})

    stored = (await api.get("/api/rollouts/r1")).json()["rollout"]["config"]["local"]["env_map"]
    assert stored == variables


async def test_an_error_message_is_kept_up_to_a_length_and_can_still_be_changed_after_the_end(api):
    await create(api)
    long = "first\n" + "x" * 1_000_000 + "\nlast"
    ended = await api.patch("/api/rollouts/r1", json={"status": {"state": "failed", "error_message": long}})
    patched = await api.patch("/api/rollouts/r1", json={"status": {"error_message": long}})

    for answer in (ended, patched):
        message = answer.json()["status"]["error_message"]
        assert answer.status_code == 200
        assert len(message) < 33_000
        assert message.startswith("first\n")
        assert message.endswith("\nlast")
        assert "characters left out" in message
