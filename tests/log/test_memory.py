"""A server near its memory limit: new rollouts are turned away first, then events, and what frees memory never."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunSettings, encode
from leyden.log.errors import LogFull, MemoryShort
from leyden.redis_server import RedisServer
from leyden.schemas import NewRollout, State

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server whose limit the tests set."""
    with RedisServer(tmp_path_factory.mktemp("small")) as server:
        yield server


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[Redis]:
    """A client that sets the limit."""
    client = Redis.from_url(server.url)
    await client.config_set("maxmemory", "0")
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def own(server: RedisServer, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Log]:
    """A log on it, which looks at the memory each time, with a run `r`."""
    monkeypatch.setattr("leyden.log.memory._MAX_AGE_SECONDS", -1.0)
    log = Log.connect(server.url)
    await log.runs.begin("r", RunSettings(readers=["trainer"]))
    yield log
    await log.close()


def rollout(name: str, kibibytes: int = 1) -> NewRollout:
    """A rollout whose input does not compress."""
    noise = random.Random(name).randbytes(kibibytes << 10)
    return NewRollout(input=noise.hex(), rollout_id=name)


async def used(admin: Redis) -> int:
    return (await admin.info("memory"))["used_memory"]


async def test_rollouts_are_refused_first_then_events_and_freeing_goes_on(own: Log, admin: Redis):
    run = own.run("r")
    await run.rollouts.create_many(rollout(f"a{n}") for n in range(3))
    await run.calls.open("a0", "0", "c1", "gw", admin=True)
    await admin.config_set("maxmemory", str(int(await used(admin) / 0.95)))

    with pytest.raises(MemoryShort, match=r"MiB of its memory limit of .* refused above 90%.*maxmemory"):
        await run.rollouts.create(rollout("new"))
    await run.events.append("a0", "0", "note", {"n": 1}, vital=False)
    await run.calls.open("a0", "0", "c2", "gw", admin=True)

    await admin.config_set("maxmemory", "1")
    with pytest.raises(LogFull):
        await run.events.append("a0", "0", "note", {"n": 2}, vital=False)
    with pytest.raises(LogFull):
        await run.calls.open("a0", "0", "c3", "gw", admin=True)

    await run.calls.close("a0", "0", "c1", encode({}), tokens=3)
    await run.events.append("a0", "0", "reward", {"value": 1})
    await run.rollouts.end("a0", State.SUCCEEDED)
    got = await run.completions.read("trainer", "t", 10, 1)
    assert await run.completions.acknowledge("trainer", got) == 1
    await admin.config_set("maxmemory", str(1 << 30))
    await run.rollouts.create(rollout("new"))


async def test_what_exists_is_found_however_full_the_server_is(own: Log, admin: Redis):
    run = own.run("r")
    await run.rollouts.create_many([rollout("a"), rollout("b")], must_match=True)

    for limit in (int(await used(admin) / 0.95), 1):
        await admin.config_set("maxmemory", str(limit))
        found = await run.rollouts.create_many([rollout("a"), rollout("b")], must_match=True)
        assert [each.rollout_id for each in found] == ["a", "b"]
        with pytest.raises(LogFull):
            await run.rollouts.create_many([rollout("a"), rollout("c")])


async def test_a_batch_that_would_not_fit_is_refused_as_a_whole(own: Log, admin: Redis):
    await admin.config_set("maxmemory", str(await used(admin) + 4 * MIB))
    own.memory._share = 1.0

    with pytest.raises(MemoryShort):
        await own.run("r").rollouts.create_many(rollout(f"big{n}", kibibytes=512) for n in range(12))

    assert sum((await own.run("r").rollouts.counts()).values()) == 0


async def test_a_server_without_a_limit_has_room(own: Log):
    assert await own.memory.has_room(1 << 50)
    assert (await own.memory.use()).limit_bytes == 0
