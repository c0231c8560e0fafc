"""Holding back new calls of a run. The contract's routes mean run `default`."""

from __future__ import annotations

from fastapi import APIRouter

from leyden.schemas import PauseRequest, PauseState
from leyden_gateway.api.bodies import StrictRoute
from leyden_gateway.api.scope import DefaultRun, NamedRun

proxy_router = APIRouter(tags=["pause"], route_class=StrictRoute)
router = APIRouter(tags=["pause"], route_class=StrictRoute)


@proxy_router.post("/proxy/pause")
async def pause(run: DefaultRun, body: PauseRequest | None = None) -> PauseState:
    """Hold back new calls; from the answer on, none is forwarded by any replica."""
    return await run.pause.pause(body)


@proxy_router.post("/proxy/resume")
async def resume(run: DefaultRun) -> PauseState:
    """Let new calls go."""
    return await run.pause.resume()


@proxy_router.get("/proxy/state")
async def state(run: DefaultRun) -> PauseState:
    """Whether calls are held back, and how many are in flight."""
    return await run.pause.state()


@router.post("/runs/{run}/pause")
async def pause_run(run: NamedRun, body: PauseRequest | None = None) -> PauseState:
    """Hold back a run's new calls; from the answer on, none is forwarded by any replica."""
    return await run.pause.pause(body)


@router.post("/runs/{run}/resume")
async def resume_run(run: NamedRun) -> PauseState:
    """Let a run's new calls go."""
    return await run.pause.resume()


@router.get("/runs/{run}/state")
async def state_of_run(run: NamedRun) -> PauseState:
    """Whether a run's calls are held back, and how many are in flight."""
    return await run.pause.state()
