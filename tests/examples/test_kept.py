"""What a kept command leaves behind, however it and the process that started it end: nothing."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from examples.kept import __file__ as KEPT

from leyden.processes import own_group_until_parent_dies

STUBBORN = textwrap.dedent("""
    import os, pathlib, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(sys.argv[1] + ".new").write_text(f"{os.getpid()} {helper.pid}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(600)
""")
STARTER = textwrap.dedent("""
    import subprocess, sys
    from leyden.processes import own_group_until_parent_dies
    subprocess.Popen(sys.argv[1:], preexec_fn=own_group_until_parent_dies).wait()
""")


def kept(seconds: float, *command: str) -> list[str]:
    return [sys.executable, KEPT, str(seconds), *command]


def stubborn(pids: Path) -> list[str]:
    """A command that heeds no SIGTERM and has a child; the file gets both pids."""
    return [sys.executable, "-c", STUBBORN, str(pids)]


def started(pids: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while not pids.exists():
        assert time.monotonic() < deadline, "the command did not start"
        time.sleep(0.02)
    return [psutil.Process(int(pid)) for pid in pids.read_text().split()]


def still_there(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended within `seconds`, and are no zombies that only wait to be reaped."""
    deadline = time.monotonic() + seconds
    while left := [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def test_a_command_that_heeds_no_sigterm_is_killed_with_its_children_when_the_starter_was_killed(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *kept(0.5, *stubborn(tmp_path / "pids"))])
    processes = started(tmp_path / "pids")

    starter.kill()
    starter.wait()

    assert still_there(processes, 20) == []


def test_a_command_that_heeds_no_sigterm_is_killed_after_its_seconds_when_asked_to_end(tmp_path):
    keeper = subprocess.Popen(kept(0.5, *stubborn(tmp_path / "pids")))
    processes = started(tmp_path / "pids")

    keeper.terminate()

    assert keeper.wait(20) == 128 + signal.SIGKILL
    assert still_there(processes, 5) == []


def test_a_command_may_end_in_its_own_way(tmp_path):
    code = textwrap.dedent("""
        import pathlib, signal, sys, time
        def end(*_):
            time.sleep(0.5)
            pathlib.Path(sys.argv[1], "ended").touch()
            sys.exit(7)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path(sys.argv[1], "ready").touch()
        time.sleep(600)
    """)
    keeper = subprocess.Popen(kept(30, sys.executable, "-c", code, str(tmp_path)))
    started_at = time.monotonic()
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < started_at + 30
        time.sleep(0.02)

    keeper.terminate()

    assert keeper.wait(20) == 7
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("code", "expected"), [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", 128 + signal.SIGSEGV)])
def test_the_exit_code_is_the_commands(code, expected):
    assert subprocess.run(kept(5, "sh", "-c", code), timeout=30, check=False).returncode == expected


def test_the_commands_end_is_seen_although_the_starter_ignores_that_of_its_children():
    keeper = subprocess.Popen(
        kept(5, "sh", "-c", "exit 3"), preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    )
    try:
        assert keeper.wait(20) == 3
    finally:
        keeper.kill()
        keeper.wait()


def test_what_a_command_left_running_ends_with_it(tmp_path):
    pids = tmp_path / "pids"
    code = f"sleep 600 & echo $! > {pids}.new; mv {pids}.new {pids}"

    assert subprocess.run(kept(5, "sh", "-c", code), timeout=30, check=False).returncode == 0

    left = int(pids.read_text())
    assert not psutil.pid_exists(left) or still_there([psutil.Process(left)], 5) == []


def test_ctrl_c_in_the_terminal_is_left_to_the_starter(tmp_path):
    keeper = subprocess.Popen(kept(0.5, *stubborn(tmp_path / "pids")), preexec_fn=own_group_until_parent_dies)
    processes = started(tmp_path / "pids")
    groups = {os.getpgid(process.pid) for process in processes}

    assert os.getpgid(0) not in groups | {os.getpgid(keeper.pid)}
    assert groups == {processes[0].pid}
    keeper.terminate()
    assert keeper.wait(20) == 128 + signal.SIGKILL
