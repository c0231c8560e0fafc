"""The weights that a call began and ended under."""

from __future__ import annotations

from leyden.log import RunLog, encode
from leyden.schemas import Model, NewRollout

SERVER = Model(model="m", endpoint="http://gpu:8000/v1", version="b1:3")
PAYLOAD = encode({"server": {"model": "m", "endpoint": SERVER.endpoint, "version": "b1:3"}})


async def recorded(run: RunLog, name: str) -> dict:
    """The data of a call, as its event tells it."""
    (event,) = [entry for entry in await run.events.entries("a") if entry.call_id == name]
    assert event.data is not None
    return event.data


async def test_a_call_tells_the_version_that_its_server_has_when_it_is_put_on_record(run: RunLog):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    await run.models.add([SERVER])
    for name in ("before", "across", "orphaned"):
        await run.calls.open("a", "0", name, "gw", admin=True)

    await run.calls.close("a", "0", "before", PAYLOAD, server=SERVER)
    await run.models.replace([SERVER.model_copy(update={"version": "b1:4"})])
    await run.calls.close("a", "0", "across", PAYLOAD, server=SERVER)
    await run.models.clear()
    await run.calls.close("a", "0", "orphaned", PAYLOAD, server=SERVER)

    assert (await recorded(run, "before"))["model_version_at_end"] == "b1:3"
    assert (await recorded(run, "across"))["model_version_at_end"] == "b1:4"
    assert (await recorded(run, "orphaned"))["model_version_at_end"] is None
    assert {(await recorded(run, name))["server"]["version"] for name in ("before", "across", "orphaned")} == {"b1:3"}


async def test_asking_whether_a_call_may_go_again_tells_of_new_weights(run: RunLog):
    await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
    opened = await run.calls.open("a", "0", "c", "gw", admin=True)
    assert await run.calls.recheck("a", "c") == opened

    newer = await run.models.add([SERVER])

    assert (await run.calls.recheck("a", "c")).revision == newer > opened.revision
