"""A life of a log in which every script runs at least once."""

from __future__ import annotations

import contextlib

from leyden.log import Log, RunSettings, encode
from leyden.log.errors import LogUnavailable, RunPaused
from leyden.log.keys import RunKeys
from leyden.schemas import Model, NewRollout, State, StatusPatch


async def tour(log: Log, name: str = "tour") -> None:
    """Everything once; raises if anything is not as it should be."""
    await log.ping()
    await log.runs.begin(name, RunSettings(readers=["trainer", "archive"]))
    run = log.run(name)
    await run.set_settings(await run.settings())
    await run.models.add([Model(model="m", endpoint="http://x/v1")])
    epoch = await run.lease.acquire("trainer", 60)
    await run.steps.append("begun", {}, epoch=epoch, step_id="1")

    ids = [f"{name}-{n}" for n in range(4)]
    await run.rollouts.create_many(NewRollout(input={"n": each}, rollout_id=each) for each in ids)
    one, two = await run.queue.take("c", 2)
    await run.rollouts.start(one.rollout_id, "0", entry=one.entry, consumer="c")
    await run.queue.renew("c", [one.entry, two.entry])
    await run.queue.hand_back("c", two.entry, two.rollout_id)
    await run.queue.take_over("d", 60, 5)
    assert await run.queue.forget_idle(3600) == 0

    nonce = (await log.locate(ids[0])).nonce
    await run.calls.open(ids[0], "0", "c1", "gw", nonce=nonce)
    await run.calls.open(ids[0], "0", "c2", "gw", nonce=nonce)
    await run.calls.open(ids[0], "0", "c3", "gw", nonce=nonce)
    await run.replicas.beat("gw")
    await run.calls.recheck(ids[0], "c1")
    await run.calls.close(ids[0], "0", "c1", encode({}), nonce=nonce)
    await run.pause.pause()
    with contextlib.suppress(RunPaused):
        await run.calls.recheck(ids[0], "c2")
    await run.events.append(ids[0], "0", "reward", {"value": 1})
    await run.events.append(ids[0], "0", "note", {}, vital=False)
    await run.rollouts.patch(ids[1], StatusPatch(state=State.RUNNING, last_attempt_id="0"))
    await run.rollouts.end(ids[0], State.SUCCEEDED, entry=one.entry, consumer="c")
    await run.rollouts.patch(ids[1], StatusPatch(state=State.FAILED, error_message="x"))
    await run.rollouts.delete(ids[2])
    await run.rollouts.rebuild(ids[0])
    assert len(await run.events.of_attempt(ids[0])) == 3
    await run.pause.drained(5)
    await run.replicas.leave("gw")
    await run.pause.resume()

    got = await run.completions.read("trainer", "t", 10, 1)
    assert await run.completions.acknowledge("trainer", got) == 0
    assert await run.remove_reader("archive")
    assert await run.completions.page(0, 5) == ([], 3)
    await run.rollouts.retire(3600)
    await log._scripts.run("begin_creation", [RunKeys(name).settings, RunKeys(name).claims], ["dead"])
    assert await run.rollouts.release_abandoned(-1) == 0
    await log.runs.end(name)
    assert [each.rollout_id for each in await run.rollouts.in_states(State, 10)] == [ids[3]]


async def patiently(ask, tries: int = 200):
    """What `ask()` gives, however often the log is away in between."""
    for _ in range(tries):
        with contextlib.suppress(LogUnavailable):
            return await ask()
    raise AssertionError(f"the log was away {tries} times in a row")
