"""Events that agents, hooks and the trainer report."""

from __future__ import annotations

import asyncio

import pytest

from leyden.log import Log, PayloadInvalid, RunLog
from leyden.log.errors import RolloutFinished, RolloutMissing
from leyden.schemas import NewRollout, State, StatusPatch


@pytest.fixture
async def nonce(run: RunLog, log: Log) -> str:
    """The nonce of the rollout `a`."""
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    return (await log.locate("a")).nonce


async def test_events_come_back_in_order_by_attempt_the_last_by_default(run: RunLog, nonce: str):
    for attempt, value in (("0", 1), ("1", 2), ("0", 3)):
        event = await run.events.append("a", attempt, "reward", {"value": value})
        assert (event.attempt_id, event.data, event.rollout_id) == (attempt, {"value": value}, "a")

    async def values(attempt: str | None) -> list[int]:
        return [event.data["value"] for event in await run.events.of_attempt("a", attempt)]

    assert await values(None) == [1, 3]
    assert await values("1") == [2]
    assert await values("7") == []
    await run.rollouts.patch("a", StatusPatch(last_attempt_id="1"))
    assert await values(None) == [2]
    assert await run.rollouts.attempts("a") == ["0", "1"]


async def test_an_event_with_an_id_is_appended_once_an_attempt(run: RunLog, nonce: str, other_log: Log):
    events = other_log.run(run.run).events
    both = await asyncio.gather(
        *(who.append("a", "0", "note", {"n": 1}, event_id="once") for who in (run.events, events) for _ in range(5))
    )
    await run.events.append("a", "1", "note", {"n": 2}, event_id="once")

    assert len({event.timestamp for event in both}) == 1
    assert len(await run.events.of_attempt("a", "0")) == 1
    assert len(await run.events.of_attempt("a", "1")) == 1


async def test_an_agent_who_asks_again_is_told_the_same_even_after_the_end(run: RunLog, nonce: str):
    first = await run.events.append("a", "0", "reward", {"value": 1}, event_id="r", nonce=nonce, admin=False)
    await run.rollouts.end("a", State.SUCCEEDED)
    again = await run.events.append("a", "0", "reward", {"value": 1}, event_id="r", nonce=nonce, admin=False)
    assert again == first
    with pytest.raises(RolloutFinished, match="ended as succeeded"):
        await run.events.append("a", "0", "reward", {"value": 2}, nonce=nonce, admin=False)
    await run.events.append("a", "0", "hooked", {})
    assert [event.event_type for event in await run.events.of_attempt("a")] == ["reward", "hooked"]


async def test_events_of_what_is_not_there_are_refused(run: RunLog, nonce: str):
    with pytest.raises(ValueError, match="neither a nonce"):
        await run.events.append("a", "0", "note", {}, admin=False)
    for ask in (
        lambda: run.events.append("none", "0", "note", {}),
        lambda: run.events.of_attempt("none"),
        lambda: run.events.entries("none"),
        lambda: run.rollouts.attempts("none"),
    ):
        with pytest.raises(RolloutMissing, match="Rollout not found: none"):
            await ask()
    await run.rollouts.delete("a")
    with pytest.raises(RolloutMissing):
        await run.events.append("a", "0", "note", {})
    with pytest.raises(RolloutMissing):
        await run.events.of_attempt("a")


async def test_a_reward_that_is_not_finite_is_refused_by_its_value(run: RunLog, nonce: str):
    with pytest.raises(PayloadInvalid, match=r"data\.value is inf"):
        await run.events.append("a", "0", "reward", {"value": float("inf")})
    assert await run.events.of_attempt("a") == []
