"""Runs of their own for tests that need several, and the coverage of the scripts' returns.

With LEYDEN_LUA_COVERAGE=1 every `return` of every script is noted in the server's log as it is passed, and those that
no test of this folder reached are listed at the end.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunLog, RunSettings, scripts

Begin = Callable[..., Coroutine[Any, Any, RunLog]]

_runs = itertools.count()


@pytest.fixture
def begin(log: Log) -> Begin:
    """Begins runs under names that no other test has, with the readers given."""

    async def begin(*readers: str, log: Log = log) -> RunLog:
        name = f"run-{next(_runs)}"
        await log.runs.begin(name, RunSettings(readers=list(readers)))
        return log.run(name)

    return begin


@pytest.fixture
async def other_log(redis_url: str) -> AsyncIterator[Log]:
    """The same log as another process has it."""
    log = Log.connect(redis_url)
    yield log
    await log.close()


@pytest.fixture(autouse=True, scope="session")
def script_coverage() -> Iterator[None]:
    """See above."""
    if not os.environ.get("LEYDEN_LUA_COVERAGE"):
        yield
        return
    plain = scripts.script
    returns: set[str] = set()

    def marked(name: str) -> scripts.Script:
        lines = plain(name).text.splitlines()
        for number, line in enumerate(lines):
            if re.search(r"(^|\s)return\b", line) and not line.startswith("--"):
                returns.add(f"{name}: {line.strip()}")
                mark = f"redis.log(redis.LOG_WARNING, [==[PASSED {name}: {line.strip()}]==]) return"
                lines[number] = re.sub(r"\breturn\b", lambda _, mark=mark: mark, line, count=1)
        text = "\n".join(lines)
        return scripts.Script(name, text, hashlib.sha1(text.encode()).hexdigest())

    scripts.script = marked
    yield
    scripts.script = plain
    passed = Path(os.environ["LEYDEN_LUA_COVERAGE"]).read_text()
    print(f"\n{len(returns)} returns of scripts, not reached:")  # noqa: T201
    for each in sorted(returns):
        if f"PASSED {each}" not in passed:
            print(f"  {each}")  # noqa: T201


@pytest.fixture
async def wire(redis: Redis, redis_url: str) -> AsyncIterator[Redis]:
    """A second client, for looking at what is stored."""
    client = Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()
