"""Rollouts: create, list, read, patch, delete. The contract's lists mean run `default`; `/api/runs/{run}` the rest."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from leyden.log import RunLog
from leyden.log.errors import RolloutMissing
from leyden.schemas import NewRollout, Rollout, RolloutDetail, RolloutPatch, State, TerminalItem, TerminalPage
from leyden_gateway.api.bodies import StrictRoute
from leyden_gateway.api.scope import DefaultRun, NamedRun, RunOfRollout, TheGateway

router = APIRouter(tags=["rollouts"], route_class=StrictRoute)

_MAX_INTEGER = (1 << 63) - 1
_MAX_PAGE = 100_000

States = Annotated[list[State], Query()]
Limit = Annotated[int, Query(ge=0, le=_MAX_INTEGER)]
Place = Annotated[int, Query(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]


@router.post("/rollouts", status_code=201)
async def create_rollouts(body: list[NewRollout], run: DefaultRun) -> list[Rollout]:
    """Create rollouts and queue them. One whose id is known is returned as it stands."""
    return await run.rollouts.create_many(body)


@router.post("/runs/{run}/rollouts", status_code=201)
async def create_rollouts_of_run(body: list[NewRollout], run: NamedRun, must_match: bool = False) -> list[Rollout]:
    """Create rollouts of a run. With `must_match`, a known id with another input, mode or config is refused (409)."""
    return await run.rollouts.create_many(body, must_match=must_match)


@router.get("/rollouts")
async def list_rollouts(run: DefaultRun, state_in: States, limit: Limit = 500) -> list[Rollout]:
    """Rollouts in these states, oldest first."""
    return await run.rollouts.in_states(state_in, min(limit, _MAX_PAGE))


@router.get("/runs/{run}/rollouts")
async def list_rollouts_of_run(run: NamedRun, state_in: States, limit: Limit = 500) -> list[Rollout]:
    """Rollouts of a run in these states, oldest first."""
    return await run.rollouts.in_states(state_in, min(limit, _MAX_PAGE))


@router.get("/rollouts/terminal")
async def list_terminal(run: DefaultRun, after: Place = 0, limit: Place = 1000) -> TerminalPage:
    """Finished rollouts in completion order, past the first `after` of them."""
    return await _terminal(run, after, limit)


@router.get("/runs/{run}/rollouts/terminal")
async def list_terminal_of_run(run: NamedRun, after: Place = 0, limit: Place = 1000) -> TerminalPage:
    """Finished rollouts of a run in completion order, past the first `after` of them."""
    return await _terminal(run, after, limit)


@router.get("/rollouts/{rollout_id}")
async def get_rollout(rollout_id: str, run: RunOfRollout) -> RolloutDetail:
    """A rollout, the attempts that have events, by first event, and what each has used of its budget."""
    return RolloutDetail(
        rollout=await run.rollouts.get(rollout_id),
        attempts=await run.rollouts.attempts(rollout_id),
        spent=await run.rollouts.spent(rollout_id),
    )


@router.patch("/rollouts/{rollout_id}")
async def patch_rollout(rollout_id: str, body: RolloutPatch, run: RunOfRollout) -> Rollout:
    """Change a rollout's status."""
    if body.status is None:
        return await run.rollouts.get(rollout_id)
    return await run.rollouts.patch(rollout_id, body.status)


@router.delete("/rollouts/{rollout_id}", status_code=204, response_class=Response)
async def delete_rollout(rollout_id: str, gateway: TheGateway) -> None:
    """Hide a rollout at once, and free it when nobody needs it any more; nothing happens if there is none."""
    try:
        location = await gateway.log.locate(rollout_id)
    except RolloutMissing:
        return
    await gateway.log.run(location.run).rollouts.delete(rollout_id)
    gateway.locations.forget(rollout_id)


async def _terminal(run: RunLog, after: int, limit: int) -> TerminalPage:
    after = max(0, after)
    page, total = await run.completions.page(after, min(max(1, limit), _MAX_PAGE))
    items = [
        TerminalItem(rollout_id=each.rollout_id, state=each.state, data_id=each.data_id, is_train=each.is_train)
        for each in page
    ]
    return TerminalPage(items=items, next_after=page[-1].ordinal if page else after, total_terminal=total)
