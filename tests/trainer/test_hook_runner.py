"""The user's hooks around rollouts, over a real server."""

from typing import Any

import pytest

from leyden.event_types import HOOKED
from leyden.hooks import RolloutHooks
from leyden.log import RunLog
from leyden.schemas import NewRollout, State
from leyden_trainer.hook_runner import HookRunner


class Judge(RolloutHooks):
    """Rewards a rollout by its events, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.dies = False

    def on_startup(self, store: Any | None = None) -> None:
        self.asked.append("startup")

    def on_enqueue(self, request: NewRollout) -> NewRollout:
        request.input["seen"] = True
        return request.model_copy(update={"rollout_id": "another"})

    def on_succeeded(self, rollout, events, store) -> None:
        self.asked.append(rollout.rollout_id)
        said = sum(len(of_attempt) for of_attempt in events.values())
        store.add_event(rollout.rollout_id, "0", "note", {"events": said})
        if self.dies:
            raise RuntimeError("the judge is ill")
        store.add_event(rollout.rollout_id, "0", "reward", {"value": 0.25})

    def on_failed(self, rollout, store) -> None:
        store.add_event(rollout.rollout_id, "0", "note", {"error": rollout.status.error_message})


async def finished(run: RunLog, state: State = State.SUCCEEDED) -> None:
    await run.rollouts.create(NewRollout(input={}, rollout_id="r"))
    await run.events.append("r", "0", "reward", {"value": 1.0})
    await run.rollouts.end("r", state, error="exit 1" if state is State.FAILED else "")


async def types(run: RunLog) -> list[str]:
    return [event.event_type for event in await run.events.of_attempt("r")]


async def test_what_a_hook_appends_is_followed_by_a_marker(run: RunLog):
    await finished(run)

    await HookRunner(Judge(), run).finished("r", State.SUCCEEDED)

    assert await types(run) == ["reward", "note", "reward", HOOKED]
    assert (await run.events.of_attempt("r"))[2].data == {"value": 0.25}


async def test_a_hook_does_not_run_again_where_its_marker_stands(run: RunLog):
    await finished(run)
    judge = Judge()

    for _ in range(2):
        await HookRunner(judge, run).finished("r", State.SUCCEEDED)

    assert judge.asked == ["r"]


async def test_a_hook_that_was_cut_short_appends_nothing_twice(run: RunLog):
    await finished(run)
    runner = HookRunner(Judge(), run)
    await run.events.append("r", "0", "note", {"events": 1}, event_id="hook.r.0")  # died after the first of two

    await runner.finished("r", State.SUCCEEDED)

    assert await types(run) == ["reward", "note", "reward", HOOKED]


async def test_a_failed_rollout_has_its_own_hook(run: RunLog):
    await finished(run, State.FAILED)

    await HookRunner(Judge(), run).finished("r", State.FAILED)

    assert (await run.events.of_attempt("r"))[1].data == {"error": "exit 1"}


async def test_a_hook_may_change_what_is_asked_but_not_its_id(run: RunLog):
    given = NewRollout(input={"q": 1}, rollout_id="r")

    changed = await HookRunner(Judge(), run).enqueue(given)

    assert (changed.input, changed.rollout_id) == ({"q": 1, "seen": True}, "r")
    assert given.input == {"q": 1}


async def test_a_hook_that_raises_says_which_it_was_and_leaves_no_marker(run: RunLog):
    await finished(run)
    judge = Judge()
    judge.dies = True

    with pytest.raises(RuntimeError, match="the judge is ill") as raised:
        await HookRunner(judge, run).finished("r", State.SUCCEEDED)

    assert raised.value.__notes__ == ["in hook on_succeeded of Judge for r"]
    assert await types(run) == ["reward"]
