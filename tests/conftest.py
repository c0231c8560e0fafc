"""What every test of the log stands on: a real server of the session's own, emptied before each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunLog, RunSettings
from leyden.redis_server import RedisServer

RUN = "test"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server: the private one, or that of LEYDEN_TEST_REDIS_URL."""
    given = os.environ.get("LEYDEN_TEST_REDIS_URL")
    if given:
        yield given
        return
    folder: Path = tmp_path_factory.mktemp("redis")
    with RedisServer(folder) as server:
        yield server.url


@pytest.fixture
async def redis(redis_server: str) -> AsyncIterator[Redis]:
    """A client on an empty database."""
    client = Redis.from_url(redis_server)
    await client.flushall()
    await client.config_set("maxmemory", "0")
    yield client
    await client.aclose()


@pytest.fixture
def redis_url(redis: Redis, redis_server: str) -> str:
    """The URL of the emptied database, for processes."""
    return redis_server


@pytest.fixture
async def log(redis_url: str) -> AsyncIterator[Log]:
    """The log on the emptied database."""
    log = Log.connect(redis_url)
    yield log
    await log.close()


@pytest.fixture
async def run(log: Log) -> RunLog:
    """A run that has begun, with one reader."""
    await log.runs.begin(RUN, RunSettings(readers=["trainer"]))
    return log.run(RUN)
