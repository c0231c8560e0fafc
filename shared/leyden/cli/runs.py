"""`leyden runs`: the runs of a deployment."""

from __future__ import annotations

from leyden import deployment
from leyden.cli.console import DataDir, print_table, table_of, with_log
from leyden.log import Log
from leyden.schemas import State


def runs(data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """List runs, with how many rollouts are in each state."""

    async def show(log: Log) -> None:
        rows = []
        for name in await log.runs.names():
            run = log.run(name)
            settings, counts, pause = await run.settings(), await run.rollouts.counts(), await run.pause.state()
            rows.append(
                (
                    name,
                    settings.model or "",
                    " ".join(settings.readers),
                    *(str(counts[state]) for state in State),
                    "yes" if pause.paused else "",
                    str(pause.inflight),
                )
            )
        names = ("run", "model", "readers", *(state.value for state in State), "paused", "in flight")
        print_table(table_of(names, rows, folding=("model", "readers", "in flight")))

    with_log(data_dir, show)
