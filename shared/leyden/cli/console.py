"""How the command talks to people: results on standard output, everything else on standard error.

Invariants:
- what a table names things by stands in it whole, however narrow the terminal: other columns fold;
- what isn't printed on a terminal is as wide as it needs to be.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from redis.exceptions import RedisError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leyden import deployment
from leyden.log import Log
from leyden.log.errors import (
    LogAddressInvalid,
    LogFull,
    LogUnavailable,
    RolloutFinished,
    RolloutMissing,
    RunMissing,
    ServerUnsupported,
    TransitionRefused,
)

_UNLIMITED = 1 << 20
"""Columns of what is no terminal: as many as any table may need."""

out = Console()
if not out.is_terminal:
    out.width = _UNLIMITED
err = Console(stderr=True)

DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="LEYDEN_DATA_DIR", help="Folder of a deployment of `leyden up`.")
]
RunName = Annotated[str, typer.Option("--run", envvar="LEYDEN_RUN", help="The run, see `leyden runs`.")]


def table_of(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, folding: Sequence[str] = (), title: str | None = None
) -> Table:
    """A table of plain text; only the columns named in `folding` become narrower than what stands in them."""
    widths = [max(Text(cells[place]).cell_len for cells in [names, *rows]) for place in range(len(names))]
    gap = 2 if sum(widths) + 2 * (len(names) - 1) <= out.width else 1
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width in zip(names, widths, strict=True):
        if name in folding:
            table.add_column(name, overflow="fold", min_width=max(map(len, name.split())))
        else:
            table.add_column(name, no_wrap=True, min_width=width)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def print_table(table: Table) -> None:
    """Print a table; a terminal too narrow for it wraps its lines, rather than losing their ends."""
    out.print(table, crop=False)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what a user can mend into one line and exit code 1."""
    try:
        yield
    except (
        LookupError,
        RolloutMissing,
        RunMissing,
        TransitionRefused,
        RolloutFinished,
        ServerUnsupported,
        LogUnavailable,
        LogFull,
        LogAddressInvalid,
        RedisError,
        OSError,
        deployment.DeploymentUnknown,
    ) as error:
        err.print(f"[bold red]error:[/] {error}", highlight=False)
        raise typer.Exit(1) from error


def with_log(data_dir: Path, use: Any) -> None:
    """Run `use(log)`, a coroutine function, on the deployment's log; Ctrl-C ends it quietly."""
    import asyncio

    async def run() -> None:
        log = Log.connect(deployment.redis_url(data_dir))
        try:
            work: Coroutine[Any, Any, None] = use(log)
            await work
        finally:
            await log.close()

    with plain_errors():
        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
