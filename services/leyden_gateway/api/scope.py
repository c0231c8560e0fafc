"""What the routes of the API take from a request: the gateway, and the part of the log that an address means."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from leyden.log import RunLog
from leyden.schemas import DEFAULT_RUN, Name
from leyden_gateway.access import Caller, any_caller
from leyden_gateway.gateway import Gateway


async def gateway_of(request: Request) -> Gateway:
    """The process's gateway."""
    return request.app.state.gateway


TheGateway = Annotated[Gateway, Depends(gateway_of)]
TheCaller = Annotated[Caller, Depends(any_caller)]


async def default_run(gateway: TheGateway) -> RunLog:
    """Run `default`, which the contract's own lists mean; begun if Redis was away or emptied since start-up.

    Raises:
        LogUnavailable, LogFull
    """
    await gateway.begin_default_run()
    return gateway.log.run(DEFAULT_RUN)


async def named_run(gateway: TheGateway, run: Annotated[Name, Path()]) -> RunLog:
    """The run that the address names.

    Raises:
        RunMissing: it has not begun.
    """
    log = gateway.log.run(run)
    await log.settings()
    return log


async def run_of(gateway: TheGateway, rollout_id: str) -> RunLog:
    """The run of the rollout that the address names, whichever it is.

    Raises:
        RolloutMissing: there is no such rollout.
    """
    return gateway.log.run((await gateway.log.locate(rollout_id)).run)


DefaultRun = Annotated[RunLog, Depends(default_run)]
NamedRun = Annotated[RunLog, Depends(named_run)]
RunOfRollout = Annotated[RunLog, Depends(run_of)]
