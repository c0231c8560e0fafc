"""The demo with the tiny model, every part of it real: vLLM, verl, Redis, gateway, controller, agents."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from examples.serve_vllm import DEFAULT_PYTHON

ROOT = Path(__file__).parents[2]
TRACKER = Path("demo-tiny-1/checkpoints/latest_checkpointed_iteration.txt")
OUTCOME = Path("demo-tiny-1/outcome.json")
MARK = "LEYDEN_TEST_DEMO"
STEPS = 14

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.verl,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not DEFAULT_PYTHON.exists(), reason="vLLM is not installed: make vllm-env"),
]


@contextlib.contextmanager
def demo(folder: Path, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """The demo as a process, which is ended with the context."""
    command = ["-m", "examples.demo", "--model", "tiny", "--folder", str(folder)]
    with (folder / "demo.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command, f"trainer.total_training_steps={STEPS}"],
            cwd=ROOT,
            env=os.environ | {MARK: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)


def marked(mark: str) -> list[str]:
    """The command lines of the processes that a demo started and that are still there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


def wait_until(condition, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (folder / "demo.out").read_text()[-3000:]
        time.sleep(0.5)


def test_a_demo_that_was_killed_leaves_nothing_running_goes_on_and_ends_with_a_clear_gain(tmp_path):
    mark = uuid.uuid4().hex
    with demo(tmp_path, mark) as first:
        wait_until(lambda: (tmp_path / TRACKER).exists() or first.poll() is not None, 800, tmp_path)
        assert first.poll() is None, (tmp_path / "demo.out").read_text()[-3000:]
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    wait_until(lambda: not marked(mark), 90, tmp_path)

    with demo(tmp_path, mark) as second:
        code = second.wait(900)

    assert code == 0, (tmp_path / "demo.out").read_text()[-3000:]
    assert "a clear gain" in (tmp_path / "demo.out").read_text()
    outcome = json.loads((tmp_path / OUTCOME).read_text())
    assert sorted(map(int, outcome["reward_by_step"])) == list(range(1, STEPS + 1))
    assert outcome["after"] > outcome["before"]
    assert (tmp_path / "demo-tiny-1" / "reward.png").exists()
    wait_until(lambda: not marked(mark), 30, tmp_path)
