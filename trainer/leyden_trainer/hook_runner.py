"""Runs the user's hooks around rollouts, each effect once.

Invariants:
- an event that a hook appends has an id made of its place, so a hook that is cut short and runs again appends it once;
- the last event is a `hooked` marker; where it stands, the hook does not run again.
"""

import asyncio
from typing import Any

from leyden.event_types import HOOKED
from leyden.hooks import RolloutHooks
from leyden.log import RunLog
from leyden.schemas import DEFAULT_ATTEMPT, Event, NewRollout, State


class _Writer:
    """Collects what a hook appends; it is written when the hook has returned."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, dict[str, Any]]] = []

    def add_event(self, rollout_id: str, attempt_id: str, event_type: str, data: dict[str, Any]) -> None:
        self.events.append((rollout_id, attempt_id, event_type, data))


class HookRunner:
    """Runs one set of hooks for one run; a hook that raises stops the trainer, with a note of which it was."""

    def __init__(self, hooks: RolloutHooks, run: RunLog) -> None:
        self._hooks = hooks
        self._run = run

    async def startup(self) -> None:
        await self._call("on_startup", "", None)

    async def enqueue(self, new: NewRollout) -> NewRollout:
        """What is to be created instead of `new`, under the same id."""
        changed = await self._call("on_enqueue", new.rollout_id or "", new.model_copy(deep=True))
        return changed.model_copy(update={"rollout_id": new.rollout_id})

    async def finished(self, rollout_id: str, state: State) -> None:
        """Run the hook for a finished rollout, unless it has run."""
        rollout = await self._run.rollouts.get(rollout_id)
        attempts = await self._run.rollouts.attempts(rollout_id)
        last = rollout.status.last_attempt_id or DEFAULT_ATTEMPT
        events = {
            attempt: await self._run.events.of_attempt(rollout_id, attempt)
            for attempt in dict.fromkeys([*attempts, last])
        }
        if any(_is_marker(event) for of_attempt in events.values() for event in of_attempt):
            return
        writer = _Writer()
        if state is State.SUCCEEDED:
            await self._call("on_succeeded", rollout_id, rollout, events, writer)
        else:
            await self._call("on_failed", rollout_id, rollout, writer)
        for place, (target, attempt, event_type, data) in enumerate(writer.events):
            await self._run.events.append(target, attempt, event_type, data, event_id=f"hook.{rollout_id}.{place}")
        await self._run.events.append(rollout_id, last, HOOKED, {}, event_id=f"hook.{rollout_id}")

    async def _call(self, name: str, rollout_id: str, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(getattr(self._hooks, name), *arguments)
        except Exception as error:
            error.add_note(
                f"in hook {name} of {type(self._hooks).__name__}" + (f" for {rollout_id}" * bool(rollout_id))
            )
            raise


def _is_marker(event: Event) -> bool:
    return event.event_type == HOOKED
