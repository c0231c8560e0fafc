"""Events: what agents, hooks and trainers report of a rollout, and everything that is on record of it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path

from leyden.auth import Admin, Right
from leyden.event_types import SERVICES_OWN
from leyden.schemas import Event, Name, NewEvent
from leyden.triplet import MODEL_REQUEST, REWARD, is_number, triplets
from leyden_gateway.access import Forbidden, admin_only, allow
from leyden_gateway.api.answers import BadValue
from leyden_gateway.api.bodies import StrictRoute
from leyden_gateway.api.scope import RunOfRollout, TheCaller, TheGateway

router = APIRouter(tags=["events"], route_class=StrictRoute)


@router.post("/rollouts/{rollout_id}/attempt/{attempt}/events")
async def post_event(
    rollout_id: str,
    attempt: Annotated[Name, Path()],
    body: NewEvent,
    caller: TheCaller,
    run: RunOfRollout,
    gateway: TheGateway,
) -> Event:
    """Append an event; with an `event_id`, appending it again changes nothing.

    An agent may report what its rights allow on its own attempt, and never what a service of Leyden puts on record.
    """
    if body.event_type == REWARD and not is_number(body.data.get("value")):
        raise BadValue(f"a reward's value must be a finite number, not {body.data.get('value')!r}")
    agent = None if isinstance(caller, Admin) else caller
    if agent is not None and body.event_type in SERVICES_OWN:
        raise Forbidden(f"an agent can't post events of type {body.event_type}")
    allow(caller, rollout_id, attempt, Right.REWARD if body.event_type == REWARD else Right.EVENT)
    if agent is not None and body.event_type == REWARD:
        view = await gateway.views.recent(run.run)
        if not view.settings.agents_may_reward:
            raise Forbidden(f"run {run.run} does not let agents post rewards")
    return await run.events.append(
        rollout_id,
        attempt,
        body.event_type,
        body.data,
        event_id=body.event_id,
        nonce=agent.nonce if agent is not None else None,
        admin=agent is None,
        vital=agent is None or body.event_type == REWARD,
    )


@router.get("/rollouts/{rollout_id}/events", dependencies=[Depends(admin_only)])
async def list_events(
    rollout_id: str,
    run: RunOfRollout,
    event_type: str | None = None,
    format: Literal["triplet"] | None = None,
    include_routed_experts: bool = True,
    attempt: Name | None = None,
) -> list[Event]:
    """The events of the last attempt, or of the one named, in order."""
    events = await run.events.of_attempt(rollout_id, attempt)
    if event_type is not None:
        events = [event for event in events if event.event_type == event_type]
    if format == "triplet":
        events = triplets(events)
    if not include_routed_experts:
        events = [_without_experts(event) for event in events]
    return events


def _without_experts(event: Event) -> Event:
    if event.event_type != MODEL_REQUEST or "routed_experts" not in event.data:
        return event
    return event.model_copy(update={"data": {k: v for k, v in event.data.items() if k != "routed_experts"}})
