"""Budgets of an attempt: no call too many, whatever happens at once, and nothing counted that was not asked for."""

from __future__ import annotations

import asyncio

import pytest

from leyden.log import Log, RunLog, RunSettings, encode
from leyden.log.errors import BudgetSpent, CallLost, RunPaused
from leyden.schemas import NewRollout, RolloutConfig, Spent, State, StatusPatch
from tests.log.conftest import Begin

PAYLOAD = encode({"response": {}})


async def limited(log: Log, begin: Begin, *, rollout: RolloutConfig | None = None, **limits: int) -> RunLog:
    """A run with these limits, and a rollout `a` in it."""
    run = await begin("trainer")
    await run.set_settings(RunSettings(readers=["trainer"], **limits))  # pyright: ignore[reportArgumentType]
    await run.rollouts.create(NewRollout(input=None, rollout_id="a", config=rollout or RolloutConfig()))
    return run


async def call(run: RunLog, name: str, *, tokens: int | None = 10, attempt: str = "0") -> None:
    """One call, from opening to closing."""
    await run.calls.open("a", attempt, name, "gw", admin=True)
    await run.calls.close("a", attempt, name, PAYLOAD, tokens=tokens)


async def test_the_call_past_the_budget_is_refused_by_name_and_the_refusal_is_on_record_once(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=2)
    await call(run, "c1")
    await call(run, "c2")

    for name in ("c3", "c4"):
        with pytest.raises(BudgetSpent, match=r"Rollout a: attempt 0 has used its budget of calls: 2 of 2"):
            await run.calls.open("a", "0", name, "gw", admin=True)

    assert await run.rollouts.spent("a") == {"0": Spent(calls=2, tokens=20, refused="calls")}
    (refusal,) = [entry for entry in await run.events.entries("a") if entry.kind == "refused"]
    assert (refusal.attempt, refusal.notes) == ("0", {"budget": "calls", "used": "2", "limit": "2"})
    assert (await run.pause.state()).inflight == 0


async def test_calls_at_once_never_exceed_the_budget(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=5)

    opened = await asyncio.gather(
        *(run.calls.open("a", "0", f"c{n}", "gw", admin=True) for n in range(40)), return_exceptions=True
    )

    assert sum(isinstance(each, BudgetSpent) for each in opened) == 35
    assert (await run.pause.state()).inflight == 5


async def test_the_call_that_reaches_the_token_budget_is_the_last(log: Log, begin: Begin):
    run = await limited(log, begin, max_tokens_per_attempt=100)
    await call(run, "c1", tokens=99)
    await call(run, "c2", tokens=500)

    with pytest.raises(BudgetSpent, match="budget of tokens: 599 of 100"):
        await run.calls.open("a", "0", "c3", "gw", admin=True)


async def test_a_rollout_sets_its_own_budget_in_place_of_the_run_s(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=1, rollout=RolloutConfig(max_calls_per_attempt=3))
    for n in range(3):
        await call(run, f"c{n}")

    with pytest.raises(BudgetSpent, match="3 of 3"):
        await run.calls.open("a", "0", "c3", "gw", admin=True)


async def test_a_budget_that_is_raised_or_lifted_holds_for_the_next_call(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=1)
    await call(run, "c1")
    with pytest.raises(BudgetSpent):
        await call(run, "c2")

    await run.set_settings(RunSettings(readers=["trainer"], max_calls_per_attempt=2))
    await call(run, "c2")
    with pytest.raises(BudgetSpent):
        await call(run, "c3")
    await run.set_settings(RunSettings(readers=["trainer"]))
    await call(run, "c3")


async def test_what_is_abandoned_or_recorded_without_tokens_takes_nothing(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=1)
    for n in range(3):
        await run.calls.open("a", "0", f"gone{n}", "gw", admin=True)
        await run.calls.abandon("a", "0", f"gone{n}")
        await call(run, f"aborted{n}", tokens=None)
    await call(run, "c")

    assert await run.rollouts.spent("a") == {"0": Spent(calls=1, tokens=10)}


async def test_a_held_call_keeps_its_place_and_is_counted_once(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=1)
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.pause.pause()
    with pytest.raises(RunPaused):
        await run.calls.recheck("a", "c1")

    with pytest.raises(BudgetSpent):
        await run.calls.open("a", "0", "c2", "gw", admin=True)
    await run.pause.resume()
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.calls.close("a", "0", "c1", PAYLOAD, tokens=1)
    await run.calls.close("a", "0", "c1", PAYLOAD, tokens=1)

    assert await run.rollouts.spent("a") == {"0": Spent(calls=1, tokens=1, refused="calls")}


async def test_an_attempt_that_follows_another_has_the_whole_budget(log: Log, begin: Begin):
    run = await limited(log, begin, max_calls_per_attempt=1)
    await run.rollouts.patch("a", StatusPatch(state=State.RUNNING, last_attempt_id="0"))
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.rollouts.patch("a", StatusPatch(last_attempt_id="1"))

    await call(run, "c2", attempt="1")
    with pytest.raises(BudgetSpent):
        await call(run, "c3", attempt="1")


async def test_a_fenced_attempt_s_held_call_is_forgotten_and_its_replica_is_told(log: Log, begin: Begin):
    run = await limited(log, begin)
    await run.rollouts.patch("a", StatusPatch(state=State.RUNNING, last_attempt_id="0"))
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.pause.pause()
    with pytest.raises(RunPaused):
        await run.calls.recheck("a", "c1")
    place = await run.control.last()

    await run.rollouts.patch("a", StatusPatch(last_attempt_id="1"))

    signals = await run.control.wait(place, 5)
    assert [(signal.kind, signal.rollout_id) for signal in signals] == [("fenced", "a")]
    with pytest.raises(CallLost):
        await run.calls.recheck("a", "c1")
