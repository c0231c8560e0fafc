"""What a person sees of a run, from the log alone."""

import asyncio
import io
import time
from typing import Any

from rich.console import Console

from leyden.log import RunLog, StepEntry
from leyden.schemas import NewRollout, State
from leyden_trainer.progress import StepProgress

COUNTS = dict.fromkeys(State, 0)


def watching(redis_url: str = "redis://127.0.0.1:1/0") -> tuple[StepProgress, io.StringIO]:
    shown = io.StringIO()
    return StepProgress(redis_url, "test", Console(file=shown, force_terminal=True, width=160)), shown


def entry(kind: str, **data: Any) -> StepEntry:
    return StepEntry("1-0", kind, "id", 1, data)


def bar(progress: StepProgress) -> Any:
    return progress._progress.tasks[0]


def test_the_bar_says_what_a_step_waits_for():
    progress, _ = watching()
    progress.show(entry("asked", step=3, rollouts=8, draws=[4, 6]))
    progress.show_counts(COUNTS | {State.QUEUING: 2, State.RUNNING: 3})

    assert bar(progress).description == "step 3"
    assert (bar(progress).completed, bar(progress).total) == (3, 8)
    assert bar(progress).fields["waiting"] == "2 queued, 3 running, 3 finished"


def test_the_bar_is_full_when_the_batch_is_decided_whatever_else_the_run_does():
    progress, _ = watching()
    progress.show(entry("asked", step=3, rollouts=8, draws=[4, 6]))
    progress.show(entry("batch", step=3, chosen=[1] * 7, left_out={"r": "exit 1"}))
    progress.show_counts(COUNTS | {State.RUNNING: 5})

    assert bar(progress).completed == 8
    assert bar(progress).fields["waiting"] == "updating"


def test_what_is_done_is_said_in_a_line():
    progress, shown = watching()
    metrics = {"training/rollouts/reward/mean": 0.51234, "training/tokens_per_second": 123.456}
    progress.show(entry("update", step=3, metrics=metrics))
    progress.show(entry("validation", step=3, metrics={"validation/rollouts/reward/mean": 0.75}))
    progress.show(entry("checkpoint", step=3, folder="/checkpoints/global_step_3"))

    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert lines == [
        "step 3: reward 0.5123, 123.5 tokens/s trained",
        "validation at step 3: reward 0.75",
        "checkpoint at step 3: /checkpoints/global_step_3",
    ]


def test_records_of_other_kinds_change_nothing():
    progress, shown = watching()
    progress.show(entry("weights", version="b:1"))
    progress.show(entry("something new"))

    assert shown.getvalue() == ""


async def test_a_run_is_followed_from_now_on(redis_url: str, run: RunLog):
    epoch = await run.lease.acquire("trainer", 30)
    await run.steps.append("update", {"step": 1, "metrics": {}}, epoch=epoch, step_id="old")
    progress, shown = watching(redis_url)
    with progress:
        await asyncio.sleep(0.5)
        await run.steps.append("asked", {"step": 2, "rollouts": 1}, epoch=epoch, step_id="asked")
        await run.rollouts.create(NewRollout(input=1, rollout_id="r"))
        await run.steps.append("update", {"step": 2, "metrics": {}}, epoch=epoch, step_id="new")
        await asyncio.to_thread(wait_for, shown, "step 2: reward")
        await asyncio.to_thread(wait_for, shown, "1 queued, 0 running, 0 finished")

    assert "step 1: reward" not in shown.getvalue()


async def test_a_log_that_is_away_does_not_end_the_display():
    progress, shown = watching()
    with progress:
        await asyncio.to_thread(wait_for, shown, "the log is away")


def wait_for(shown: io.StringIO, words: str) -> None:
    """Wait until the words were shown, at most 15 seconds."""
    deadline = time.monotonic() + 15
    while words not in shown.getvalue():
        assert time.monotonic() < deadline, shown.getvalue()[-2000:]
        time.sleep(0.05)
