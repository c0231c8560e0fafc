"""Runs: begin, look, change the rules, end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel

from leyden.log import RunSettings
from leyden.schemas import Name, PauseState, State
from leyden_gateway.api.bodies import StrictRoute
from leyden_gateway.api.scope import NamedRun, TheGateway

router = APIRouter(tags=["runs"], route_class=StrictRoute)


class RunDetail(BaseModel):
    """A run as it stands: its rules, whether it is paused, and how many rollouts are in each state."""

    run: str
    settings: RunSettings
    pause: PauseState
    rollouts: dict[State, int]


@router.get("/runs")
async def list_runs(gateway: TheGateway) -> list[str]:
    """The runs that have begun and not ended."""
    return await gateway.log.runs.names()


@router.put("/runs/{run}")
async def begin_run(run: Annotated[Name, Path()], body: RunSettings, gateway: TheGateway) -> RunDetail:
    """Begin a run, or bring new rules and further readers to one that has begun."""
    await gateway.log.runs.begin(run, body)
    return await get_run(gateway.log.run(run))


@router.get("/runs/{run}")
async def get_run(run: NamedRun) -> RunDetail:
    """A run as it stands."""
    return RunDetail(
        run=run.run,
        settings=await run.settings(),
        pause=await run.pause.state(),
        rollouts=await run.rollouts.counts(),
    )


@router.delete("/runs/{run}")
async def end_run(run: NamedRun, gateway: TheGateway) -> dict[str, str]:
    """Let a run take no more rollouts; what it holds stays readable."""
    await gateway.log.runs.end(run.run)
    return {"status": "ok"}
