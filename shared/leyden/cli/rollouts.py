"""`leyden rollouts`: list, show, follow and cancel rollouts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from leyden import deployment
from leyden.cli.console import DataDir, RunName, err, out, print_table, table_of, with_log
from leyden.log import Log, RunLog
from leyden.schemas import DEFAULT_RUN, Event, Rollout, State

app = typer.Typer(help="List, show, follow and cancel rollouts.", no_args_is_help=True)

_LATEST = 15
_LINE_CHARACTERS = 200

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@app.command("list")
def list_rollouts(
    state: Annotated[list[State] | None, typer.Option(help="Only these states; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 100,
    as_json: AsJson = False,
    run: RunName = DEFAULT_RUN,
    data_dir: DataDir = deployment.DEFAULT_FOLDER,
) -> None:
    """List rollouts."""

    async def show(log: Log) -> None:
        await log.run(run).settings()
        states = set(state or State)
        found = await log.run(run).rollouts.in_states(states, limit, newest_first=True)
        counts = await log.run(run).rollouts.counts()
        total = sum(counts[each] for each in states)
        if as_json:
            for rollout in found:
                out.print_json(rollout.model_dump_json(), indent=None)
        else:
            print_table(_table(found))
        if len(found) == limit < total:
            # Whatever reads JSON is not to find this line in it.
            (err if as_json else out).print(f"{limit} of {total}; --limit N for more", highlight=False)

    with_log(data_dir, show)


@app.command("show")
def show_rollout(rollout_id: str, as_json: AsJson = False, data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Show a rollout with its attempts, rewards and calls; --json shows it without, see `leyden log show`."""

    async def show(log: Log) -> None:
        run = log.run((await log.locate(rollout_id)).run)
        rollout = await run.rollouts.get(rollout_id)
        out.print_json(rollout.model_dump_json(), indent=None if as_json else 2)
        if as_json:
            return
        rows = [
            (attempt, _time(event.timestamp), event.event_type, _summary(event))
            for attempt in await run.rollouts.attempts(rollout_id)
            for event in await run.events.of_attempt(rollout_id, attempt)
        ]
        print_table(table_of(("attempt", "at", "event", "what"), rows, folding=("at", "what")))

    with_log(data_dir, show)


@app.command("follow")
def follow(
    run: RunName = DEFAULT_RUN,
    interval: Annotated[float, typer.Option(min=0.1, help="Longest time between two looks, in seconds.")] = 2.0,
    data_dir: DataDir = deployment.DEFAULT_FOLDER,
) -> None:
    """Watch rollouts as they finish; Ctrl-C ends."""

    async def watch(log: Log) -> None:
        watched = log.run(run)
        await watched.settings()
        _, total = await watched.completions.page(0, 1)
        after = max(0, total - _LATEST)
        lines: list[tuple[str, ...]] = []
        with Live(console=out, auto_refresh=False) as live:
            while True:
                latest, _ = await watched.completions.page(after, 1000)
                for completion in latest:
                    after = completion.ordinal
                    lines.append(await _line(watched, completion.rollout_id, completion.ordinal, completion.state))
                live.update(await _board(watched, lines[-_LATEST:]), refresh=True)
                await watched.completions.wait(after, interval)

    with_log(data_dir, watch)


@app.command("cancel")
def cancel(rollout_ids: list[str], data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """End rollouts as failed; their agents are killed."""

    async def end(log: Log) -> None:
        for rollout_id in rollout_ids:
            run = log.run((await log.locate(rollout_id)).run)
            await run.rollouts.end(rollout_id, State.FAILED, error="cancelled by the operator")
            err.print(f"cancelled {rollout_id}", highlight=False)

    with_log(data_dir, end)


def _table(rollouts: list[Rollout]) -> Table:
    rows = []
    for rollout in rollouts:
        status = rollout.status
        rows.append(
            (
                rollout.rollout_id,
                "train" if rollout.is_train else "val",
                status.state,
                status.last_attempt_id or "",
                _time(status.created_at),
                f"{status.updated_at - status.created_at:.1f} s" if status.state.terminal else "",
                _reason(status.error_message or ""),
            )
        )
    names = ("rollout", "mode", "state", "try", "created", "took", "error")
    return table_of(names, rows, folding=("created", "error"))


def _reason(message: str) -> str:
    """Why a rollout failed, in a line.

    A message of the controller's is `REASON: OUTPUT`, and the last line of an output says what was wrong, such as
    the exception under a traceback.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    if len(lines) == 1:
        return _start_of(lines[0])
    return f"{_start_of(lines[0].partition(': ')[0])}: {_start_of(lines[-1])}"


def _start_of(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"


async def _board(run: RunLog, lines: list[tuple[str, ...]]) -> Table:
    counts, pause = await run.rollouts.counts(), await run.pause.state()
    held = ", calls held" if pause.paused else ""
    title = ", ".join(f"{counts[state]} {state}" for state in State) + f", {pause.inflight} calls in flight{held}"
    names = ("no.", "rollout", "state", "calls", "tokens", "reward")
    return table_of(names, lines, folding=("reward",), title=f"run {run.run}: {title}")


async def _line(run: RunLog, rollout_id: str, ordinal: int, state: State) -> tuple[str, ...]:
    try:
        events = await run.events.of_attempt(rollout_id)
    except LookupError:
        return str(ordinal), rollout_id, state, "", "", "freed"
    calls = [event for event in events if event.event_type == "model_request"]
    tokens = sum((event.data.get("usage") or {}).get("completion_tokens", 0) for event in calls)
    rewards = [event.data.get("value") for event in events if event.event_type == "reward"]
    return str(ordinal), rollout_id, state, str(len(calls)), str(tokens), f"{rewards[-1]}" if rewards else ""


def _summary(event: Event) -> str:
    data: dict[str, Any] = event.data
    if event.event_type == "model_request":
        usage = data.get("usage") or {}
        tokens = f"{usage.get('prompt_tokens', '?')} + {usage.get('completion_tokens', '?')} tokens"
        return f"{data.get('http_status')} {tokens}, {data.get('finish_reason')}, {data.get('latency_ms') or 0:.0f} ms"
    return _start_of(json.dumps(data, ensure_ascii=False))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%m-%d %H:%M:%S")
