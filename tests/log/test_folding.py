"""The hash of a rollout is what its stream says, and can be made anew from it."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from leyden.log import Log, RunLog, encode, keys
from leyden.log.errors import (
    AttemptFenced,
    BudgetSpent,
    CallLost,
    LeaseLost,
    LogUnavailable,
    RolloutFinished,
    RolloutMissing,
    RunPaused,
    TransitionRefused,
)
from leyden.log.fold import fold
from leyden.schemas import NewRollout, RolloutConfig, State, StatusPatch
from tests.log.conftest import Begin

REFUSALS = (AttemptFenced, BudgetSpent, LeaseLost, RolloutFinished, RolloutMissing, RunPaused, TransitionRefused)
ATTEMPTS = ("0", "1", "2")
BUDGET = RolloutConfig(max_calls_per_attempt=3, max_tokens_per_attempt=200)

ACTS = """start, hand back, take over, open, open, close, close, abandon, recheck, event, event again,
patch, patch running, patch ended, end, delete, acknowledge, pause, resume"""
acts = st.sampled_from([act.strip() for act in ACTS.split(",")])


async def act(run: RunLog, rollout_id: str, what: str, number: int, attempt: str) -> None:
    """One thing that may happen to a rollout; what is refused changes nothing."""
    call = f"c{number % 3}"
    match what:
        case "start" | "hand back":
            for taken in await run.queue.take("me", 1) or await run.queue.take_over("me", 0, 1):
                if what == "start":
                    await run.rollouts.start(
                        rollout_id, attempt, entry=taken.entry, consumer="me", job_name="j" * (number % 2)
                    )
                else:
                    await run.queue.hand_back("me", taken.entry, rollout_id)
        case "take over":
            await run.queue.take_over("other", 0, 1)
        case "open":
            await run.calls.open(rollout_id, attempt, call, "gw", admin=True)
        case "close":
            tokens = number if number % 2 else None
            await run.calls.close(rollout_id, attempt, call, encode({"n": number}), tokens=tokens)
        case "abandon":
            await run.calls.abandon(rollout_id, attempt, call)
        case "recheck":
            with contextlib.suppress(CallLost):
                await run.calls.recheck(rollout_id, call)
        case "event" | "event again":
            event_id = "same" if what == "event again" else None
            await run.events.append(rollout_id, attempt, "note", {"n": number}, event_id=event_id)
        case "patch":
            fields = {"last_attempt_id": attempt, "k8s_job_name": None, "error_message": f"e{number}"}
            await run.rollouts.patch(rollout_id, StatusPatch.model_validate(dict(list(fields.items())[number % 3 :])))
        case "patch running":
            await run.rollouts.patch(rollout_id, StatusPatch(state=State.RUNNING, last_attempt_id=attempt))
        case "patch ended":
            await run.rollouts.patch(rollout_id, StatusPatch(state=State.FAILED, k8s_job_name="x", error_message="bad"))
        case "end":
            await run.rollouts.end(rollout_id, State.SUCCEEDED, error="note" * (number % 2))
        case "delete":
            await run.rollouts.delete(rollout_id)
        case "acknowledge":
            page, _ = await run.completions.page(0, 10)
            await run.completions.acknowledge("trainer", page)
        case "pause":
            await run.pause.pause()
        case "resume":
            await run.pause.resume()


@given(history=st.lists(st.tuples(acts, st.integers(0, 99), st.sampled_from(ATTEMPTS)), max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_after_any_history_the_hash_is_the_fold_of_the_stream_and_can_be_rebuilt(
    begin: Begin, wire: Redis, history: list[tuple[str, int, str]]
):
    run = await begin("trainer", "archive")
    k, rollout_id = keys.RunKeys(run.run), f"{run.run}.a"
    await run.rollouts.create(NewRollout(input={"data_id": "d"}, config=BUDGET, rollout_id=rollout_id))
    for what, number, attempt in history:
        try:
            await act(run, rollout_id, what, number, attempt)
        except REFUSALS:
            continue
    raw = Redis(connection_pool=run.rollouts._redis.connection_pool)
    rows: Any = await raw.xrange(k.events(rollout_id))
    stands: Any = await wire.hgetall(k.rollout(rollout_id))
    stored = {name: value for name, value in stands.items() if not name.startswith(("call:", "held:", "open:"))}
    under_way = Counter(
        value.partition(" ")[2] for name, value in stands.items() if name.startswith(("call:", "held:"))
    )

    assert fold(rows) == stored
    assert {name: int(value) for name, value in stands.items() if name.startswith("open:") and value != "0"} == {
        f"open:{attempt}": count for attempt, count in under_way.items()
    }

    sets = {state: await wire.zrange(k.in_state(state), 0, -1, withscores=True) for state in State}
    calls = {name: value for name, value in stands.items() if name not in stored}
    if rows:
        await wire.hset(k.rollout(rollout_id), mapping={"state": "damaged", "junk": "x"})
        if len(history) % 2:
            await wire.delete(k.rollout(rollout_id))
            calls = {}
        await wire.delete(*k.states)
        await run.rollouts.rebuild(rollout_id)
        assert await wire.hgetall(k.rollout(rollout_id)) == stored | calls
        assert {state: await wire.zrange(k.in_state(state), 0, -1, withscores=True) for state in State} == sets


async def test_a_rollout_without_a_stream_is_not_rebuilt(run: RunLog):
    with pytest.raises(RolloutMissing):
        await run.rollouts.rebuild("none")


async def test_a_stream_that_grows_meanwhile_is_folded_again(run: RunLog, log: Log, monkeypatch: pytest.MonkeyPatch):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    through, growths = log._scripts.run, iter([True, False])

    async def grow(name, keys, args=()):
        if name == "rebuild_rollout" and next(growths, always):
            await run.events.append("a", "0", "note", {})
        return await through(name, keys, args)

    always = False
    monkeypatch.setattr(log._scripts, "run", grow)
    await run.rollouts.rebuild("a")
    assert len(await run.events.of_attempt("a")) == 1
    always = True
    with pytest.raises(LogUnavailable, match="changed 8 times"):
        await run.rollouts.rebuild("a")
