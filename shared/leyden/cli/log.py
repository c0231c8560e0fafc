"""`leyden log`: what stands in the log, entry by entry."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import orjson
import typer

from leyden import deployment
from leyden.cli.console import DataDir, RunName, out, with_log
from leyden.log import Log
from leyden.schemas import DEFAULT_RUN

app = typer.Typer(help="Read the log, entry by entry.", no_args_is_help=True)


@app.command("show")
def show(
    rollout_id: str,
    whole: Annotated[bool, typer.Option(help="Payloads too, with every token id.")] = False,
    data_dir: DataDir = deployment.DEFAULT_FOLDER,
) -> None:
    """Print a rollout's stream, one JSON object a line."""

    async def entries(log: Log) -> None:
        run = log.run((await log.locate(rollout_id)).run)
        for entry in await run.events.entries(rollout_id):
            fields = {name: value for name, value in dataclasses.asdict(entry).items() if value not in (None, {})}
            if not whole:
                fields.pop("data", None)
            typer.echo(orjson.dumps(fields))

    with_log(data_dir, entries)


@app.command("steps")
def steps(run: RunName = DEFAULT_RUN, data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Print what the trainer decided and did, one JSON object a line."""

    async def entries(log: Log) -> None:
        await log.run(run).settings()
        for step in await log.run(run).steps.read():
            out.print_json(orjson.dumps(dataclasses.asdict(step)).decode(), indent=None)

    with_log(data_dir, entries)
