"""Agents as processes: started as asked, watched to their end, and none left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from leyden.schemas import Rollout, RolloutMetadata, Status
from leyden_controller.local.runner import LocalAttempt, LocalRunner
from leyden_controller.local.supervisor import OUTPUT_BYTES
from leyden_controller.runner import Cause, Ending, Launch, RunningAttempt, StartRefused
from tests.controller.support import SECONDS, asked, living, shell, until


def launch(command: str | list[str] | None = None, *, variables: dict[str, str] | None = None, **config) -> Launch:
    """The first attempt of a rollout that runs `command`."""
    new = asked("r", command, **config)
    rollout = Rollout(
        rollout_id="r",
        input=new.input,
        config=new.config,
        metadata=RolloutMetadata(),
        status=Status(created_at=0, updated_at=0),
    )
    return Launch(rollout, "0", variables or {})


async def end_of(attempt: RunningAttempt) -> Ending:
    return await asyncio.wait_for(attempt.ended(), SECONDS)


async def run(runner: LocalRunner, *args, **kwargs) -> Ending:
    return await end_of(await runner.start(launch(*args, **kwargs)))


async def family(file: Path, count: int) -> list[psutil.Process]:
    """The processes whose numbers stand in a file, one a line, once there are `count`."""
    await until(lambda: len(numbers_in(file)) >= count, f"{count} processes say who they are")
    return [psutil.Process(pid) for pid in numbers_in(file)]


def above(attempt: LocalAttempt) -> list[psutil.Process]:
    """An agent's keeper and its supervisor."""
    return psutil.Process(attempt.pid).parents()[:2]


def numbers_in(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


async def test_an_agent_that_exits_with_0_succeeded(runner):
    assert await run(runner, "true") == Ending(Cause.SUCCEEDED)


async def test_an_agent_that_exits_otherwise_failed_and_its_output_is_kept(runner):
    ending = await run(runner, shell("echo told; echo wrong >&2; exit 7"))

    assert ending == Ending(Cause.FAILED, "exited with code 7", "told\nwrong\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_an_agent_that_something_else_kills_did_not_fail_by_itself(runner, number):
    ending = await run(runner, shell(f"kill -{number} $$; sleep 60"))

    assert (ending.cause, ending.message) == (Cause.KILLED, f"killed by {number.name}")


async def test_an_agent_whose_shell_says_that_it_was_killed_did_not_fail_by_itself(runner):
    ending = await run(runner, shell("sh -c 'kill -9 $$'; exit $?"))

    assert (ending.cause, ending.message) == (Cause.KILLED, "exited with code 137")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE])
async def test_an_agent_that_crashes_failed_by_itself(runner, number):
    ending = await run(runner, shell(f"kill -{number} $$; sleep 60"))

    assert (ending.cause, ending.message) == (Cause.FAILED, f"killed by {number.name}")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"command": "no-such-program --at all"}, "'no-such-program': No such file"),
        ({"command": "/etc"}, "'/etc': Permission denied"),
        ({"command": "/etc/passwd/program"}, "'/etc/passwd/program': Not a directory"),
        ({"command": "echo 'unclosed"}, "No closing quotation"),
        ({"command": "  "}, "neither agent_class nor command"),
        ({"command": []}, "neither agent_class nor command"),
        ({}, "neither agent_class nor command"),
        ({"command": "true", "cwd": "/no/such/folder"}, "'/no/such/folder'"),
        ({"command": "true", "cwd": "/etc/hostname"}, "'/etc/hostname'"),
        ({"command": "true", "env_map": {"X": "input.missing"}}, "'input.missing'"),
        ({"command": ["echo", "a" * 300_000]}, "Argument list too long"),
        ({"command": "true", "env_map": {"X": "a" * 300_000}}, "Argument list too long"),
    ],
)
async def test_what_can_not_be_started_is_refused_by_name(runner, config, named):
    with pytest.raises(StartRefused) as refused:
        await runner.start(launch(**config))

    assert named in str(refused.value)


async def test_a_rollout_without_local_configuration_is_refused(runner):
    without = launch("true")
    without.rollout.config.local = None

    with pytest.raises(StartRefused, match=r"config\.local is missing"):
        await runner.start(without)


async def test_an_agent_gets_its_variables_over_what_it_inherits_and_none_of_ours(tmp_path):
    runner = LocalRunner(
        {"PATH": os.environ["PATH"], "LEYDEN_KEY": "secret", "LEYDEN_REDIS_URL": "x", "MINE": "a", "AGL_KEY": "theirs"}
    )
    file = tmp_path / "env"
    try:
        await run(
            runner,
            ["sh", "-c", 'env > "$0"; pwd >> "$0"', str(file)],
            variables={"AGL_KEY": "token"},
            input={"task": {"id": [4, 2]}, "text": "zwei\nZeilen"},
            env_map={"TASK": "input.task", "TEXT": "input.text", "LITERAL": "so"},
            cwd=str(tmp_path),
        )
    finally:
        await runner.close()

    lines = file.read_text().splitlines()
    assert {"MINE=a", "AGL_KEY=token", 'TASK={"id": [4, 2]}', "TEXT=zwei", "Zeilen", "LITERAL=so"} <= set(lines)
    assert lines[-1] == str(tmp_path)
    assert "secret" not in file.read_text()
    assert "LEYDEN_" not in file.read_text()


async def test_an_agent_reads_nothing_and_leads_a_session_of_its_own(runner, tmp_path):
    file = tmp_path / "pid"
    attempt = await runner.start(launch(shell(f"cat; echo $$ > {file}; sleep 60")))
    (agent,) = await family(file, 1)

    assert os.getsid(agent.pid) == agent.pid != os.getsid(0)
    attempt.kill()
    assert (await end_of(attempt)).cause is Cause.STOPPED


async def test_signals_and_pipes_are_as_in_any_process(runner):
    ending = await run(runner, shell("yes | head -1; grep -i 'sig\\(ign\\|blk\\)' /proc/self/status; exit 1"))

    lines = ending.output.splitlines()
    assert lines[0] == "y"
    # Those above 31 are the C library's own; make lets its children ignore one of them.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in lines[1:]] == [0, 0]


async def test_past_its_time_an_agent_and_all_that_it_started_are_killed(runner, tmp_path):
    file = tmp_path / "pids"
    began = time.monotonic()
    attempt = await runner.start(
        launch(shell(f"echo said; (trap '' TERM; echo $$ >> {file}; sleep 60) & sleep 60"), timeout_seconds=1)
    )
    processes = await family(file, 1)
    ending = await end_of(attempt)

    assert ending == Ending(Cause.TIMED_OUT, "timed out after 1 s", "said\n")
    assert time.monotonic() - began < 10
    assert not living(processes)


ELUSIVE = """
echo $$ >> {file}
setsid sh -c 'echo $$ >> {file}; setsid sh -c "echo \\$\\$ >> {file}; sleep 300" & sleep 300' &
(sh -c 'echo $$ >> {file}; exec sleep 300' &)
while [ $(wc -l < {file}) -lt 4 ]; do sleep 0.01; done
"""
"""Starts a session of its own in a session of its own, and a process whose parent has gone."""


async def test_processes_that_an_agent_leaves_behind_are_killed_in_whatever_session_they_hide(runner, tmp_path):
    file = tmp_path / "pids"

    ending = await run(runner, shell(ELUSIVE.format(file=file)))

    assert ending.cause is Cause.SUCCEEDED
    processes = [int(pid) for pid in file.read_text().split()]
    assert len(processes) == 4
    assert not [pid for pid in processes if psutil.pid_exists(pid)]


async def test_killing_an_attempt_kills_all_that_it_started(runner, tmp_path):
    file = tmp_path / "pids"
    attempt = await runner.start(launch(shell(ELUSIVE.format(file=file) + "sleep 300")))
    processes = await family(file, 4)

    attempt.kill()
    attempt.kill()

    assert (await end_of(attempt)).cause is Cause.STOPPED
    assert not living(processes)


async def test_a_killed_keeper_takes_its_agent_and_all_that_it_started_along(runner, tmp_path):
    file = tmp_path / "pids"
    attempt = await runner.start(launch(shell(ELUSIVE.format(file=file) + "sleep 300")))
    processes = await family(file, 4)

    above(attempt)[0].kill()

    assert (await end_of(attempt)).cause is Cause.LOST
    await until(lambda: not living(processes), "the agent's processes are gone")


async def test_agents_outlive_a_supervisor_that_is_killed_and_another_starts_new_ones(runner, tmp_path):
    file = tmp_path / "go"
    attempt = await runner.start(launch(shell(f"while [ ! -e {file} ]; do sleep 0.05; done")))
    _, supervisor = above(attempt)

    supervisor.kill()
    await until(lambda: not living([supervisor]), "the supervisor is gone")

    assert (await run(runner, "true")).cause is Cause.SUCCEEDED
    file.touch()
    assert (await end_of(attempt)).cause is Cause.SUCCEEDED


async def test_closing_the_runner_kills_what_still_runs(tmp_path):
    runner = LocalRunner()
    file = tmp_path / "pids"
    attempt = await runner.start(launch(shell(ELUSIVE.format(file=file) + "sleep 300")))
    processes = await family(file, 4)
    everything = [*processes, *above(attempt)]

    attempt.kill()
    await runner.close()

    assert not living(everything)


async def test_of_gigabytes_of_output_only_the_end_is_kept_and_nothing_fills_up(runner):
    attempt = await runner.start(launch(shell("yes 0123456789abcde | head -c 1000000000; echo the end; exit 1")))
    keeper, _ = above(attempt)
    most = 0
    ended = asyncio.create_task(end_of(attempt))
    while not ended.done():
        await asyncio.sleep(0.05)
        if living([keeper]):
            most = max(most, keeper.memory_info().rss)

    ending = await ended
    assert ending.output.endswith("the end\n")
    assert f"[{1_000_000_000 + 8 - OUTPUT_BYTES} bytes before this were dropped]" in ending.output
    assert len(ending.output) < OUTPUT_BYTES + 100
    assert most < 30 << 20


async def test_output_that_is_no_text_is_shown_as_well_as_it_can_be(runner):
    ending = await run(runner, shell("printf 'a\\377\\000b'; exit 1"))

    assert ending.output == "a\ufffd\0b"


async def test_an_agent_that_closes_its_output_is_still_watched(runner):
    assert (await run(runner, shell("echo x; exec >&- 2>&-; sleep 0.3; exit 3"))).message == "exited with code 3"


async def test_many_start_and_end_at_once(runner):
    endings = await asyncio.gather(*(run(runner, shell(f"exit {n % 3}")) for n in range(100)))

    assert [ending.cause is Cause.SUCCEEDED for ending in endings] == [n % 3 == 0 for n in range(100)]
