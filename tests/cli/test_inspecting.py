"""What `leyden runs`, `leyden rollouts` and `leyden log` print of a log."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunLog, encode
from leyden.schemas import Model, NewRollout, State
from tests.cli.conftest import Leyden
from tests.conftest import RUN


async def _finished_rollout(log: Log, run: RunLog) -> None:
    await run.rollouts.create(NewRollout(input={"question": "7 + 5"}, rollout_id="one"))
    await run.calls.open("one", "0", "call", "replica", admin=True)
    answer = {"http_status": 200, "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "finish_reason": "stop"}
    await run.calls.close("one", "0", "call", encode({**answer, "response": {"prompt_token_ids": [5, 6, 7]}}))
    await run.events.append("one", "0", "reward", {"value": 0.5})
    await run.rollouts.end("one", State.FAILED, error="the agent gave up\nafter two tries")


async def test_runs_are_listed_with_their_rollouts_by_state(log: Log, run: RunLog, leyden: Leyden) -> None:
    await _finished_rollout(log, run)

    shown = await asyncio.to_thread(leyden, "runs")

    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if RUN in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == [RUN, "", "trainer", "0", "0", "0", "1", "", "0"]


async def test_rollouts_are_listed_as_a_table_and_as_json(log: Log, run: RunLog, leyden: Leyden) -> None:
    await _finished_rollout(log, run)
    await run.rollouts.create(NewRollout(input=2, rollout_id="two"))

    table = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN)
    failed = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN, "--state", "failed", "--json")

    assert "the agent gave up" in table.stdout
    assert "two" in table.stdout
    assert [json.loads(line)["rollout_id"] for line in failed.stdout.splitlines()] == ["one"]


async def test_a_rollout_is_shown_with_its_calls_and_rewards(log: Log, run: RunLog, leyden: Leyden) -> None:
    await _finished_rollout(log, run)

    shown = await asyncio.to_thread(leyden, "rollouts", "show", "one")

    assert "3 + 2 tokens" in shown.stdout
    assert '{"value": 0.5}' in shown.stdout


async def test_a_rollouts_stream_is_printed_entry_by_entry(log: Log, run: RunLog, leyden: Leyden) -> None:
    await _finished_rollout(log, run)

    shown = await asyncio.to_thread(leyden, "log", "show", "one", "--whole")

    entries = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [entry["kind"] for entry in entries] == ["created", "event", "event", "ended"]
    assert entries[1]["data"]["response"]["prompt_token_ids"] == [5, 6, 7]


async def test_a_cancelled_rollout_has_failed_and_says_who_did_it(run: RunLog, leyden: Leyden) -> None:
    await run.rollouts.create(NewRollout(input=1, rollout_id="one"))

    done = await asyncio.to_thread(leyden, "rollouts", "cancel", "one")

    assert done.returncode == 0, done.stderr
    status = (await run.rollouts.get("one")).status
    assert (status.state, status.error_message) == (State.FAILED, "cancelled by the operator")


async def test_what_does_not_exist_is_one_clear_line_and_exit_code_1(run: RunLog, leyden: Leyden) -> None:
    for arguments, named in [
        (("rollouts", "show", "absent"), "Rollout not found: absent"),
        (("rollouts", "list", "--run", "nowhere"), "Run not found: nowhere"),
        (("log", "show", "absent"), "Rollout not found: absent"),
    ]:
        shown = await asyncio.to_thread(leyden, *arguments)
        assert shown.returncode == 1
        assert named in shown.stderr
        assert "Traceback" not in shown.stderr


async def test_a_log_that_is_away_or_unknown_is_named(leyden: Leyden) -> None:
    away = await asyncio.to_thread(leyden, "runs", LEYDEN_REDIS_URL="redis://127.0.0.1:1/0")
    unknown = await asyncio.to_thread(leyden, "runs", LEYDEN_REDIS_URL="")

    assert (away.returncode, unknown.returncode) == (1, 1)
    assert "Redis is not available" in away.stderr
    assert "leyden up" in unknown.stderr


async def test_the_doctor_finds_nothing_wrong_with_a_sound_server(run: RunLog, leyden: Leyden) -> None:
    checked = await asyncio.to_thread(leyden, "doctor")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "appendfsync everysec" in checked.stdout
    assert f"run {RUN}: 0 model servers" in checked.stdout


async def test_the_doctor_names_what_must_change(redis: Redis, run: RunLog, leyden: Leyden) -> None:
    await run.models.add([Model(model="m", endpoint="http://127.0.0.1:1/v1")])
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        checked = await asyncio.to_thread(leyden, "doctor")
    finally:
        await redis.config_set("maxmemory-policy", "noeviction")

    assert checked.returncode == 1
    assert "maxmemory-policy is allkeys-lru" in checked.stdout
    assert "http://127.0.0.1:1/v1, does not answer" in checked.stdout


async def test_a_rollout_that_has_ended_can_not_be_cancelled(log: Log, run: RunLog, leyden: Leyden) -> None:
    await run.rollouts.create(NewRollout(input=1, rollout_id="one"))
    await run.rollouts.end("one", State.SUCCEEDED)

    done = await asyncio.to_thread(leyden, "rollouts", "cancel", "one")

    assert done.returncode == 1
    assert "already ended as succeeded" in done.stderr


@pytest.mark.parametrize("url", ["garbage", "redis://127.0.0.1:x/0"])
async def test_a_redis_url_that_is_none_is_said_to_be_none(leyden: Leyden, url: str) -> None:
    for command in ("runs", "doctor"):
        said = await asyncio.to_thread(leyden, command, LEYDEN_REDIS_URL=url)
        assert said.returncode == 1
        assert "LEYDEN_REDIS_URL" in said.stderr
        assert "Traceback" not in said.stderr


async def test_a_deployment_is_not_brought_up_where_it_can_not_be(leyden: Leyden, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        used = await asyncio.to_thread(leyden, "up", "--data-dir", "new", "--port", port)
    no_folder = await asyncio.to_thread(leyden, "up", "--data-dir", "file", "--port", port)

    assert (used.returncode, no_folder.returncode) == (1, 1)
    assert f"can't listen on 127.0.0.1:{port}" in used.stderr
    assert not (tmp_path / "new").exists()
    assert "file" in no_folder.stderr
    assert "Traceback" not in used.stderr + no_folder.stderr
