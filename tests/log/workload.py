"""Many rollouts lived through at once by an impatient crowd, and what must hold of the log afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis

from leyden.log import Completion, Log, RunSettings, encode, keys
from leyden.log.errors import LeaseLost, LogUnavailable
from leyden.schemas import NewRollout, State

RUN = "busy"
CALLS = 3
_TRIES = 400

Result = TypeVar("Result")


async def until_there(ask: Callable[[], Awaitable[Result]]) -> Result:
    """What `ask()` gives, asked again however often the log is away in between."""
    for _ in range(_TRIES):
        try:
            return await ask()
        except LogUnavailable:
            await asyncio.sleep(0.02)
    raise AssertionError(f"the log was away {_TRIES} times in a row")


async def live_through(log: Log, rollouts: int) -> list[Completion]:
    """Create, start, call, reward, end and read that many rollouts; the completions are left unacknowledged."""
    run = log.run(RUN)
    await until_there(lambda: log.runs.begin(RUN, RunSettings(readers=["trainer"])))
    new = [NewRollout(input={"n": n}, rollout_id=f"r{n}") for n in range(rollouts)]
    creating = asyncio.create_task(until_there(lambda: run.rollouts.create_many(new, must_match=True)))
    agents: dict[str, asyncio.Task[None]] = {}
    async with asyncio.timeout(100):
        while len(agents) < rollouts:
            taken = await until_there(lambda: run.queue.take("c", 5))
            # What was taken and whose answer was lost is held by this controller all the same.
            taken += await until_there(lambda: run.queue.take_over("c", 1.0, 5))
            for each in taken:
                if each.rollout_id not in agents:
                    agents[each.rollout_id] = asyncio.create_task(_agent(log, each.rollout_id, each.entry))
            await asyncio.sleep(0.005)
        await asyncio.gather(creating, *agents.values())
        read: dict[int, Completion] = {}
        while len(read) < rollouts:
            with contextlib.suppress(LogUnavailable):
                for each in await run.completions.read("trainer", "t", 7, 0.2):
                    assert each.ordinal not in read, "a completion came twice"
                    read[each.ordinal] = each
    return list(read.values())


async def _agent(log: Log, rollout_id: str, entry: str) -> None:
    run = log.run(RUN)
    await until_there(lambda: run.rollouts.start(rollout_id, "0", entry=entry, consumer="c"))
    nonce = (await until_there(lambda: log.locate(rollout_id))).nonce
    for number in range(CALLS):

        async def call(number: int = number) -> None:
            call_id = uuid.uuid4().hex
            await run.calls.open(rollout_id, "0", call_id, "gw", nonce=nonce)
            closed = await until_there(lambda: run.calls.close(rollout_id, "0", call_id, encode({"n": number})))
            assert not closed.late

        await until_there(call)
    await until_there(
        lambda: run.events.append(rollout_id, "0", "reward", {"value": 1}, event_id="r", nonce=nonce, admin=False)
    )

    async def end() -> None:
        # The entry is renewed by nobody here, and taken over again and again by the one controller there is.
        with contextlib.suppress(LeaseLost):
            await run.rollouts.end(rollout_id, State.SUCCEEDED, entry=entry, consumer="c")

    await until_there(end)


async def check(log: Log, redis: Redis, completions: list[Completion], rollouts: int) -> None:
    """Every rollout ended once, every call and reward is on record once, nothing is in flight; then free it all."""
    run, k = log.run(RUN), keys.RunKeys(RUN)
    ids = sorted(f"r{n}" for n in range(rollouts))
    assert [each.ordinal for each in sorted(completions, key=lambda each: each.ordinal)] == list(range(1, rollouts + 1))
    assert sorted(each.rollout_id for each in completions) == ids
    for rollout_id in ids:
        kinds = [(event.event_type, event.data.get("n")) for event in await run.events.of_attempt(rollout_id)]
        assert kinds == [*(("model_request", n) for n in range(CALLS)), ("reward", None)], rollout_id
        entries = [entry.kind for entry in await run.events.entries(rollout_id)]
        assert entries.count("created") == entries.count("started") == entries.count("ended") == 1
        assert "late" not in entries
    await asyncio.gather(*run.calls._doubtful)
    assert (await run.pause.state()).inflight == 0
    assert await run.queue.take("c", 5) + await run.queue.take_over("c", 0, 5) == []
    assert await redis.xlen(k.queue) == 0

    await until_there(lambda: run.completions.acknowledge("trainer", completions))
    left = {key.decode() async for key in redis.scan_iter("*")}
    assert not [key for key in left if ":rollout:" in key or ":index:" in key], left
