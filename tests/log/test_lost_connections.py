"""Connections break and servers are killed in the middle of everything; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log import Log, RunSettings
from leyden.log.errors import LogUnavailable
from leyden.redis_server import RedisServer
from tests.log.flaky_proxy import FlakyProxy
from tests.log.workload import check, live_through

ROLLOUTS = 15


@pytest.mark.parametrize("seed", [1, 2])
async def test_answers_that_never_arrive_change_nothing(redis: Redis, redis_url: str, log: Log, seed: int):
    port = int(redis_url.split(":")[-1].split("/")[0])
    async with FlakyProxy(port, chance=0.25, seed=seed) as proxy:
        flaky = Log.connect(proxy.url)
        completions = await live_through(flaky, ROLLOUTS)
        assert proxy.cuts > 10
        proxy.cutting = False
        await check(flaky, redis, completions, ROLLOUTS)
        await flaky.close()


async def test_clients_that_are_killed_by_the_server_change_nothing(redis: Redis, log: Log):
    async def kill() -> None:
        while True:
            await redis.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.03)

    killing = asyncio.create_task(kill())
    completions = await live_through(log, ROLLOUTS)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    await check(log, redis, completions, ROLLOUTS)


async def test_a_server_killed_again_and_again_keeps_all_that_it_confirmed(tmp_path: Path):
    server = RedisServer(tmp_path / "data", appendfsync="always").start()
    log = Log.connect(server.url)
    redis = Redis.from_url(server.url)
    try:
        living = asyncio.create_task(live_through(log, ROLLOUTS))
        for _ in range(4):
            await asyncio.sleep(0.25)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.05)
            server.start()
        completions = await living
        await asyncio.to_thread(server.kill)
        server.start()
        with contextlib.suppress(RedisError):
            await redis.ping()
        with contextlib.suppress(LogUnavailable):
            await log.ping()
        await check(log, redis, completions, ROLLOUTS)
    finally:
        await log.close()
        await redis.aclose()
        server.stop()


@pytest.mark.parametrize("ticks", range(0, 16, 3))
async def test_who_waits_can_be_stopped_however_the_server_was_lost(tmp_path: Path, ticks: int):
    server = RedisServer(tmp_path / "data").start()
    log = Log.connect(server.url)
    try:
        await log.runs.begin("r", RunSettings())
        control = log.run("r").control

        async def follow() -> None:
            after = await control.last()
            while True:
                await control.wait(after, 20)

        await control.last()
        await asyncio.to_thread(server.kill)
        server.start()
        following = asyncio.create_task(follow())
        for _ in range(ticks):
            await asyncio.sleep(0)
        following.cancel()
        done, _ = await asyncio.wait({following}, timeout=5)
        assert done
    finally:
        await log.close()
        await asyncio.to_thread(server.stop)
