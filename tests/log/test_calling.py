"""Calls: opened before they are forwarded, recorded once, late when nothing may be learned from them."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunLog, encode, keys
from leyden.log.errors import AttemptFenced, CallLost, LogUnavailable, RolloutFinished, RolloutMissing, RunPaused
from leyden.schemas import NewRollout, PauseRequest, State, StatusPatch
from tests.log.conftest import Begin

PAYLOAD = encode({"response": {"choices": []}})


@pytest.fixture
async def nonce(run: RunLog, log: Log) -> str:
    """The nonce of the rollout `a`."""
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    return (await log.locate("a")).nonce


async def inflight(run: RunLog) -> int:
    return (await run.pause.state()).inflight


async def test_a_call_is_in_flight_from_opening_to_closing_and_recorded_once(run: RunLog, nonce: str):
    opened = await run.calls.open("a", "0", "c1", "gw", nonce=nonce)
    assert await run.calls.open("a", "0", "c1", "gw", nonce=nonce) == opened
    assert await inflight(run) == 1

    closed = await run.calls.close("a", "0", "c1", PAYLOAD)
    assert not closed.late
    assert await run.calls.close("a", "0", "c1", PAYLOAD) == closed
    assert await run.calls.open("a", "0", "c1", "gw", nonce=nonce) == opened
    assert await inflight(run) == 0

    (event,) = await run.events.of_attempt("a", "0")
    assert (event.event_type, event.data) == ("model_request", {"response": {"choices": []}})
    assert (await run.events.entries("a"))[-1].call_id == "c1"
    assert await run.rollouts.attempts("a") == ["0"]


async def test_an_abandoned_call_leaves_no_event(run: RunLog, nonce: str):
    await run.calls.open("a", "0", "c1", "gw", nonce=nonce)
    await run.calls.abandon("a", "0", "c1")
    await run.calls.abandon("a", "0", "c1")
    await run.calls.abandon("none", "0", "c1")
    assert await inflight(run) == 0
    assert await run.events.of_attempt("a", "0") == []
    assert (await run.calls.close("a", "0", "c1", PAYLOAD)).late


async def test_calls_of_what_is_not_there_or_has_ended_are_refused(run: RunLog, nonce: str):
    with pytest.raises(RolloutMissing):
        await run.calls.open("none", "0", "c", "gw", admin=True)
    with pytest.raises(RolloutMissing):
        await run.calls.close("none", "0", "c", PAYLOAD)
    with pytest.raises(ValueError, match="neither a nonce"):
        await run.calls.open("a", "0", "c", "gw")
    with pytest.raises(ValueError, match="empty payload"):
        await run.calls.close("a", "0", "c", b"")
    await run.rollouts.end("a", State.SUCCEEDED)
    for admin in (False, True):
        with pytest.raises(RolloutFinished, match="ended as succeeded"):
            await run.calls.open("a", "0", "c", "gw", nonce=nonce, admin=admin)


async def test_calls_of_a_deleted_rollout_are_refused(run: RunLog, nonce: str):
    await run.rollouts.delete("a")
    with pytest.raises(RolloutMissing):
        await run.calls.open("a", "0", "c", "gw", nonce=nonce)


class TestALostCall:
    """Its rollout ended, or another attempt took over."""

    @pytest.mark.parametrize("how", ["end", "patch", "delete", "start", "attempt"])
    async def test_is_no_longer_in_flight_and_comes_late(self, run: RunLog, nonce: str, how: str):
        (taken,) = await run.queue.take("c", 1)
        await run.calls.open("a", "0", "c1", "gw", nonce=nonce)
        await run.calls.open("a", "1 b", "c2", "gw", nonce=nonce)
        match how:
            case "end":
                await run.rollouts.end("a", State.SUCCEEDED)
            case "patch":
                await run.rollouts.patch("a", StatusPatch(state=State.FAILED))
            case "delete":
                await run.rollouts.delete("a")
            case "start":
                await run.rollouts.start("a", "1 b", entry=taken.entry, consumer="c")
            case "attempt":
                await run.rollouts.patch("a", StatusPatch.model_construct({"last_attempt_id"}, last_attempt_id="1 b"))
        survives = how in ("start", "attempt")
        assert await inflight(run) == survives
        with pytest.raises(CallLost, match="call c1 of rollout a"):
            await run.calls.recheck("a", "c1")

        assert (await run.calls.close("a", "0", "c1", PAYLOAD)).late
        assert (await run.calls.close("a", "0", "c1", PAYLOAD)).late
        assert (await run.calls.close("a", "1 b", "c2", PAYLOAD)).late is not survives
        if how != "delete":
            kinds = [entry.kind for entry in await run.events.entries("a")]
            assert kinds.count("lost") == 2 - survives
            assert kinds.count("late") == 2 - survives
            assert await run.events.of_attempt("a", "0") == []
            assert await run.rollouts.attempts("a") == (["1 b"] if survives else [])
        assert await inflight(run) == 0

    async def test_is_not_recorded_once_its_rollout_is_freed(self, begin: Begin, log: Log, wire: Redis):
        run = await begin()
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        nonce = (await log.locate("a")).nonce
        await run.calls.open("a", "0", "c1", "gw", nonce=nonce)
        await run.rollouts.delete("a")
        with pytest.raises(RolloutMissing):
            await run.calls.close("a", "0", "c1", PAYLOAD)
        with pytest.raises(CallLost):
            await run.calls.recheck("a", "c1")
        assert await wire.exists(keys.RunKeys(run.run).events("a")) == 0

    async def test_does_not_fall_into_a_rollout_created_anew(self, begin: Begin, log: Log):
        run = await begin()
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        nonce = (await log.locate("a")).nonce
        await run.calls.open("a", "0", "c1", "gw", nonce=nonce)
        await run.rollouts.delete("a")
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        with pytest.raises(RolloutMissing):
            await run.calls.close("a", "0", "c1", PAYLOAD, nonce=nonce)
        assert [entry.kind for entry in await run.events.entries("a")] == ["created"]


class TestFencing:
    """Attempts exclude each other, tokens die with the creation they were made for."""

    async def test_until_an_attempt_is_started_any_is_accepted(self, run: RunLog, nonce: str):
        for attempt in ("0", "7", "x"):
            await run.calls.open("a", attempt, f"c{attempt}", "gw", nonce=nonce)

    async def test_a_later_attempt_shuts_out_agents_of_the_others_but_never_the_admin(self, run: RunLog, nonce: str):
        await run.rollouts.patch("a", StatusPatch(state=State.RUNNING, last_attempt_id="1"))
        with pytest.raises(AttemptFenced, match="attempt 0 can't write any more, attempt 1 has taken over"):
            await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        with pytest.raises(AttemptFenced):
            await run.events.append("a", "0", "reward", {"value": 1}, nonce=nonce, admin=False)
        await run.calls.open("a", "1", "c", "gw", nonce=nonce)
        await run.calls.open("a", "0", "d", "gw", admin=True)
        await run.events.append("a", "0", "note", {})
        await run.events.append("a", "1", "reward", {"value": 1}, nonce=nonce, admin=False)

    async def test_a_token_is_worth_nothing_for_a_rollout_created_anew(self, begin: Begin, log: Log):
        run = await begin()
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        old = (await log.locate("a")).nonce
        await run.rollouts.delete("a")
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        with pytest.raises(AttemptFenced, match="created anew"):
            await run.calls.open("a", "0", "c", "gw", nonce=old)
        with pytest.raises(AttemptFenced, match="created anew"):
            await run.events.append("a", "0", "reward", {"value": 1}, nonce=old, admin=False)


class TestARecheck:
    """Before a call is forwarded once more."""

    async def test_lets_an_open_call_go_on(self, run: RunLog, nonce: str):
        await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await run.calls.recheck("a", "c")
        with pytest.raises(CallLost):
            await run.calls.recheck("a", "never opened")

    async def test_takes_a_call_off_during_a_pause_to_be_opened_again(self, run: RunLog, nonce: str):
        await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await run.pause.pause(PauseRequest(retry_after_seconds=9, reason="update"))
        for _ in range(2):
            with pytest.raises(RunPaused, match="update") as paused:
                await run.calls.recheck("a", "c")
            assert paused.value.pause.retry_after_seconds == 9
        assert await inflight(run) == 0
        with pytest.raises(RunPaused):
            await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await run.pause.resume()
        with pytest.raises(RunPaused):
            await run.calls.recheck("a", "c")
        await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await run.calls.recheck("a", "c")
        assert not (await run.calls.close("a", "0", "c", PAYLOAD)).late

    async def test_tells_of_a_rollout_that_ended_during_the_pause(self, run: RunLog, nonce: str):
        await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await run.pause.pause()
        with pytest.raises(RunPaused):
            await run.calls.recheck("a", "c")
        await run.rollouts.end("a", State.FAILED)
        with pytest.raises(CallLost):
            await run.calls.recheck("a", "c")


class TestACallWhoseOpenerNeverKnew:
    """It is open in the log, and nobody is going to close it."""

    async def test_is_taken_off_if_the_opener_was_cancelled(self, run: RunLog, nonce: str):
        opening = asyncio.create_task(run.calls.open("a", "0", "c", "gw", nonce=nonce))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.gather(*run.calls._doubtful)
        assert await inflight(run) == 0
        assert (await run.calls.close("a", "0", "c", PAYLOAD)).late

    async def test_is_taken_off_if_the_answer_was_lost(
        self, run: RunLog, log: Log, nonce: str, monkeypatch: pytest.MonkeyPatch
    ):
        through = log._scripts.run
        outages = iter([True, True, False])

        async def lossy(name, keys, args=()):
            answer = await through(name, keys, args)
            if next(outages, False):
                raise LogUnavailable("gone")
            return answer

        monkeypatch.setattr(log._scripts, "run", lossy)
        with pytest.raises(LogUnavailable):
            await run.calls.open("a", "0", "c", "gw", nonce=nonce)
        await asyncio.gather(*run.calls._doubtful)
        assert await inflight(run) == 0
