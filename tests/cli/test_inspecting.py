"""What `leyden runs`, `leyden rollouts` and `leyden log` print of a log."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunLog, RunSettings, encode
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


def _plain(printed: subprocess.CompletedProcess[str]) -> str:
    """What it printed, without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", printed.stdout)


async def test_runs_are_listed_with_their_rollouts_by_state(log: Log, run: RunLog, leyden: Leyden) -> None:
    await _finished_rollout(log, run)

    shown = await asyncio.to_thread(leyden, "runs")

    assert shown.returncode == 0, shown.stderr
    (line,) = [line for line in shown.stdout.splitlines() if RUN in line]
    assert line.split() == [RUN, "trainer", "0", "0", "0", "1", "0"]


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


async def test_names_are_never_cut_whether_a_terminal_is_narrow_or_there_is_none(
    log: Log, run: RunLog, leyden: Leyden
) -> None:
    rollout_id, name = "f" * 32, "a-run-with-quite-a-long-name-" * 2
    await run.rollouts.create(NewRollout(input=1, rollout_id=rollout_id))
    await run.rollouts.end(
        rollout_id, State.FAILED, error="the agent [gave up] because of a " + "very " * 20 + "long day"
    )
    await log.runs.begin(name, RunSettings(readers=["trainer"]))

    for terminal in ({}, {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "NO_COLOR": "1"}):
        for columns in ("40", "80"):
            listed = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN, COLUMNS=columns, **terminal)
            runs = await asyncio.to_thread(leyden, "runs", COLUMNS=columns, **terminal)
            assert rollout_id in listed.stdout, (terminal, columns)
            assert name in runs.stdout, (terminal, columns)
            assert ("the agent [gave up] because of a " in listed.stdout) == (not terminal)


async def test_the_newest_rollouts_come_first_and_it_says_if_there_are_more(run: RunLog, leyden: Leyden) -> None:
    for rollout_id in ("one", "two", "three"):
        await run.rollouts.create(NewRollout(input=1, rollout_id=rollout_id))
    await run.rollouts.end("three", State.SUCCEEDED)

    table = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN, "--limit", "2")
    as_json = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN, "--limit", "2", "--json")
    whole = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN, "--limit", "3")
    queued = await asyncio.to_thread(
        leyden, "rollouts", "list", "--run", RUN, "--limit", "1", "--state", "queuing", "--state", "queuing"
    )

    assert [line.split()[0] for line in table.stdout.splitlines()[-3:]] == ["three", "two", "2"]
    assert table.stdout.endswith("\n2 of 3; --limit N for more\n")
    assert [json.loads(line)["rollout_id"] for line in as_json.stdout.splitlines()] == ["three", "two"]
    assert as_json.stderr == "2 of 3; --limit N for more\n"
    assert "of 3" not in whole.stdout
    assert queued.stdout.endswith("\n1 of 2; --limit N for more\n")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "exited with code 1 (attempt 3 of 3): Traceback (most recent call last):\n  File 'a'\nKeyError: 'x'\n",
            "exited with code 1 (attempt 3 of 3): KeyError: 'x'",
        ),
        ("cancelled: by the operator", "cancelled: by the operator"),
        ("the agent gave up\nafter two tries [/]", "the agent gave up: after two tries [/]"),
    ],
)
async def test_why_a_rollout_failed_is_its_reason_and_the_last_line(
    run: RunLog, leyden: Leyden, message: str, shown: str
) -> None:
    await run.rollouts.create(NewRollout(input=1, rollout_id="one"))
    await run.rollouts.end("one", State.FAILED, error=message)

    table = await asyncio.to_thread(leyden, "rollouts", "list", "--run", RUN)

    assert table.stdout.rstrip().endswith(f" s  {shown}")


async def test_json_is_json_however_long_and_however_narrow_the_terminal(run: RunLog, leyden: Leyden) -> None:
    question = "why " * 100
    await run.rollouts.create(NewRollout(input={"question": question}, rollout_id="one"))

    for terminal in ({}, {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "NO_COLOR": "1"}):
        shown = await asyncio.to_thread(leyden, "rollouts", "show", "one", COLUMNS="80", **terminal)
        line = await asyncio.to_thread(leyden, "rollouts", "show", "one", "--json", COLUMNS="80", **terminal)
        entry = await asyncio.to_thread(leyden, "log", "show", "one", "--whole", COLUMNS="80", **terminal)

        rollout, _ = json.JSONDecoder().raw_decode(_plain(shown))
        assert rollout["input"]["question"] == question
        assert json.loads(_plain(line)) == rollout
        assert line.stdout.count("\n") == 1
        assert json.loads(_plain(entry))["data"]["input"]["question"] == question


@pytest.mark.parametrize("command", ["gateway", "controller"])
async def test_help_of_a_service_tells_of_the_folder_and_of_its_own_flags(leyden: Leyden, command: str) -> None:
    shown = await asyncio.to_thread(leyden, command, "--help")

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("--data-dir FOLDER")
    assert "--shutdown-grace-seconds" in shown.stdout
    assert "may run on after SIGTERM" in " ".join(shown.stdout.split())


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


@pytest.mark.parametrize(("share_used", "said"), [(2.0, "Redis is full"), (0.95, "new rollouts are refused above 90%")])
async def test_the_doctor_names_memory_that_is_short(
    redis: Redis, run: RunLog, leyden: Leyden, share_used: float, said: str
) -> None:
    # Beside it, what the doctor's own commands take is little.
    await redis.setrange("ballast", 40_000_000, b"x")
    used = int((await redis.info("memory"))["used_memory"])
    await redis.config_set("maxmemory", str(int(used / share_used)))
    try:
        checked = await asyncio.to_thread(leyden, "doctor")
    finally:
        await redis.config_set("maxmemory", "0")

    assert checked.returncode == 1, checked.stderr
    assert said in " ".join(checked.stdout.split())
    assert "no problems" not in checked.stdout


async def test_what_answers_but_is_no_redis_is_named(leyden: Leyden) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for command in ("runs", "doctor"):
            said = await asyncio.to_thread(leyden, command, LEYDEN_REDIS_URL=f"redis://{at}/0")
            assert said.returncode == 1
            assert f"what answers at {at} is no Redis" in said.stderr


async def test_a_rollout_that_has_ended_can_not_be_cancelled(log: Log, run: RunLog, leyden: Leyden) -> None:
    await run.rollouts.create(NewRollout(input=1, rollout_id="one"))
    await run.rollouts.end("one", State.SUCCEEDED)

    done = await asyncio.to_thread(leyden, "rollouts", "cancel", "one")

    assert done.returncode == 1
    assert "already ended as succeeded" in done.stderr


@pytest.mark.parametrize("url", ["garbage", "redis://127.0.0.1:x/0", "redis://127.0.0.1:1/0?foo=1"])
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
    assert "--data-dir is file, but file is a file" in no_folder.stderr
    assert "Traceback" not in used.stderr + no_folder.stderr
