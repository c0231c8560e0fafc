"""What training is waiting for, on the user's terminal: one bar a step, from what the trainer puts on record.

Runs where the user is, not where the trainer runs, and needs nothing of it but the log.
"""

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from leyden.log import Log, RunLog, StepEntry
from leyden.log.errors import LogUnavailable
from leyden.schemas import State

_REDRAW_SECONDS = 1.0
_STOP_SECONDS = 5.0


class StepProgress:
    """Follows a run while it is open as a context manager; shows nothing of what happened before."""

    def __init__(self, redis_url: str, run: str, console: Console | None = None) -> None:
        self._redis_url = redis_url
        self._run = run
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[waiting]}"),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
        )
        self._task = self._progress.add_task("starting", total=None, waiting="")
        self._asked = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="leyden-progress", daemon=True)

    def __enter__(self) -> Self:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)
        self._progress.stop()

    def show(self, entry: StepEntry) -> None:
        """Show what was put on record."""
        data, metrics = entry.data, entry.data.get("metrics", {})
        step = data.get("step", 0)
        match entry.kind:
            case "asked" | "validating":
                name = f"step {step}" if entry.kind == "asked" else f"validation at step {step}"
                self._asked = data["rollouts"]
                self._progress.reset(self._task, total=self._asked, description=name, waiting="")
            case "batch":
                self._asked = 0
                self._update(completed=len(data["chosen"]) + len(data["left_out"]), waiting="updating")
            case "update":
                reward, speed = metrics.get("training/rollouts/reward/mean"), metrics.get("training/tokens_per_second")
                self._say(f"step {step}: reward {_number(reward)}, {_number(speed)} tokens/s trained")
            case "validation":
                self._asked = 0
                reward = metrics.get("validation/rollouts/reward/mean")
                self._say(f"validation at step {step}: reward {_number(reward)}")
            case "checkpoint":
                self._say(f"checkpoint at step {step}: {data['folder']}")

    def show_counts(self, counts: dict[State, int]) -> None:
        """Show how far the rollouts are that are waited for."""
        queued, running = counts[State.QUEUING], counts[State.RUNNING]
        if self._asked:
            finished = max(0, self._asked - queued - running)
            self._update(completed=finished, waiting=f"{queued} queued, {running} running, {finished} finished")

    def _update(self, **fields: Any) -> None:
        self._progress.update(self._task, **fields)

    def _say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False)

    def _work(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        log = Log.connect(self._redis_url)
        try:
            run = log.run(self._run)
            following = asyncio.create_task(self._follow_steps(run))
            while not self._stop.is_set():
                await asyncio.sleep(_REDRAW_SECONDS)
                await self._count(run)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await log.close()

    async def _follow_steps(self, run: RunLog) -> None:
        after: str | None = None
        while True:
            try:
                if after is None:
                    known = await run.steps.read()
                    after = known[-1].entry if known else "0-0"
                async for entry in run.steps.follow(after):
                    after = entry.entry
                    self.show(entry)
            except LogUnavailable:
                self._update(waiting="the log is away")
                await asyncio.sleep(_REDRAW_SECONDS)

    async def _count(self, run: RunLog) -> None:
        try:
            self.show_counts(await run.rollouts.counts())
        except LogUnavailable:
            self._update(waiting="the log is away")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
