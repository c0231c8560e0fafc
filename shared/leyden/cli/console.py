"""How the command talks to people: results on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from redis.exceptions import RedisError
from rich.console import Console

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

out = Console()
err = Console(stderr=True)

DataDir = Annotated[
    Path, typer.Option("--data-dir", envvar="LEYDEN_DATA_DIR", help="Folder of a deployment of `leyden up`.")
]
RunName = Annotated[str, typer.Option("--run", envvar="LEYDEN_RUN", help="The run, see `leyden runs`.")]


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
