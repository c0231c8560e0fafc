"""Each point of a call's life, and who may be lost at it: the replica, the client, Redis.

Whoever it is: the log holds no answer that was not sampled, lacks none that an agent saw complete, and counts the calls
that were lost. Gateways are held at a point from outside, by the model server or on the way to Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from urllib.parse import urlsplit

import httpx
import pytest

from leyden.log import Log, RunLog
from leyden.redis_server import RedisServer
from leyden.schemas import State
from leyden.triplet import model_calls
from leyden_trainer.samples import Aggregation, Level, Row, aggregate
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.processes import GatewayProcess
from tests.gateway.stub import MODEL, TEXT, StubModel
from tests.gateway.way_to_redis import WayToRedis, What

CALL = f"{proxy('r1')}/chat/completions"
RETRY = {"x-stainless-retry-count": "1"}

pytestmark = pytest.mark.timeout(300)


class Point(StrEnum):
    """A point of a call's life, by what has happened last."""

    ASKED = "asked"
    OPENED = "opened"
    FORWARDED = "forwarded"
    STREAMING = "streaming"
    SAMPLED = "sampled"
    RECORDED = "recorded"


POINTS = [(point, stream) for point in Point for stream in (False, True) if stream or point is not Point.STREAMING]
at_every_point = pytest.mark.parametrize(("point", "stream"), POINTS)

_ON_THE_WAY: dict[Point, tuple[str, What]] = {
    Point.ASKED: ("open_call", "request"),
    Point.OPENED: ("open_call", "answer"),
    Point.SAMPLED: ("close_call", "request"),
    Point.RECORDED: ("close_call", "answer"),
}
"""Points at which a script's request or answer is stopped."""

LetGo = Callable[[], None]


class Asker:
    """An agent's client making one call."""

    def __init__(self, url: str, *, stream: bool) -> None:
        self.saw_token = asyncio.Event()
        self._url = url
        self._stream = stream
        self._task: asyncio.Task[str | None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._ask())

    async def answer(self) -> str | None:
        """The text, if the client saw an answer that looked complete."""
        assert self._task is not None
        return await asyncio.wait_for(self._task, 60)

    async def go_away(self) -> None:
        """Close the connection without waiting for more."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _ask(self) -> str | None:
        seen = ""
        try:
            async with (
                httpx.AsyncClient(headers=ADMIN, timeout=60) as client,
                client.stream("POST", f"{self._url}{CALL}", json=chat(stream=self._stream)) as answer,
            ):
                async for part in answer.aiter_text():
                    seen += part
                    if "the " in seen:
                        self.saw_token.set()
        except httpx.TransportError:
            return None
        complete = "data: [DONE]" in seen if self._stream else answer.status_code == 200
        return TEXT if complete and seen.count("four") == 1 else None


@asynccontextmanager
async def held(point: Point, way: WayToRedis, model: StubModel, asker: Asker) -> AsyncIterator[LetGo]:
    """Make the call and hold it at a point; gives what lets it go on."""
    gates = [asyncio.Event() for _ in range(4)]
    reached = asyncio.Event()

    def let_go() -> None:
        if way.stop is not None:
            way.stop.let_go()
        for gate in gates:
            gate.set()

    if point in _ON_THE_WAY:
        reached = way.stop_at(*_ON_THE_WAY[point]).reached
    elif point is Point.FORWARDED:
        model.scripts = [stub.once(gates[0], started=reached)]
    else:
        model.scripts = [stub.paced(gates)]
        reached = asker.saw_token
    asker.start()
    await asyncio.wait_for(reached.wait(), 30)
    yield let_go
    let_go()


@pytest.fixture
def redis_url(own_redis: RedisServer) -> str:
    return own_redis.url


@pytest.fixture
async def way(own_redis: RedisServer) -> AsyncIterator[WayToRedis]:
    async with WayToRedis(urlsplit(own_redis.url).port or 0) as way:
        yield way


@pytest.fixture
async def log(own_redis: RedisServer) -> AsyncIterator[Log]:
    log = Log.connect(own_redis.url)
    yield log
    await log.close()


async def prepare(url: str, model: StubModel) -> None:
    """Register the model and create the rollout; a first call of another one leaves nothing to be learned."""
    async with httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as api:
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        for name in ("warm", "r1"):
            await create(api, name)
        first = await api.post(CALL.replace("r1", "warm"), json=chat())
        assert first.status_code == 200
    model.requests.clear()


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(200):
        if await found():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to pass")


async def recorded(run: RunLog) -> list[dict]:
    """The calls on record, as a trainer reads them."""
    return model_calls(await run.events.of_attempt("r1"))


async def rows(run: RunLog) -> tuple[Row, ...]:
    limits = Aggregation(Level.TRAJECTORY, max_prompt_length=1000, max_response_length=1000)
    return aggregate(await run.events.of_attempt("r1"), limits).rows


async def kinds(run: RunLog) -> list[str]:
    return [entry.kind for entry in await run.events.entries("r1") if entry.kind in ("event", "late", "lost")]


@at_every_point
async def test_a_replica_is_killed(settings, tmp_path, log, way, model, point, stream):
    default = log.run("default")
    async with serving(settings) as other, GatewayProcess(way.url, tmp_path) as victim:
        await prepare(victim.url, model)
        asker = Asker(victim.url, stream=stream)
        async with held(point, way, model, asker):
            await victim.kill()
            if point in (Point.ASKED, Point.SAMPLED) and way.stop is not None:
                way.stop.drop()
            assert await asker.answer() is None

        assert [call["status"] for call in await recorded(default)] == (["ok"] if point is Point.RECORDED else [])
        again = Asker(other, stream=stream)
        again.start()
        assert await again.answer() == TEXT

    (row,) = await rows(default)
    assert row.response_ids == tuple(stub.token_ids(TEXT))
    await default.rollouts.end("r1", State.SUCCEEDED)
    lost = 0 if point in (Point.ASKED, Point.RECORDED) else 1
    sampled = 2 if point is Point.RECORDED else 1
    assert sorted(await kinds(default)) == ["event"] * sampled + ["lost"] * lost


@at_every_point
async def test_a_client_goes_away(settings, log, way, model, point, stream):
    default = log.run("default")
    async with serving(settings.model_copy(update={"redis_url": way.url})) as url:
        await prepare(url, model)
        asker = Asker(url, stream=stream)
        async with held(point, way, model, asker) as let_go:
            await asker.go_away()
            await asyncio.sleep(0.1)  # for the news to reach the gateway
            let_go()
            await until(lambda: _all_undelivered(default))
        assert [(call["status"], call["delivered"]) for call in await recorded(default)] == [("ok", False)]
        assert await rows(default) == ()

        async with httpx.AsyncClient(base_url=url, headers=ADMIN | RETRY, timeout=60) as client:
            first = await client.post(CALL, json=chat(stream=stream))
            assert (first.status_code, len(model.requests)) == (200, 1)
            (row,) = await rows(default)
            assert row.response_ids == tuple(stub.token_ids(TEXT))
            second = await client.post(CALL, json=chat(stream=stream))
            assert (second.status_code, len(model.requests)) == (200, 2)

    await default.rollouts.end("r1", State.SUCCEEDED)
    assert "lost" not in await kinds(default)


async def _all_undelivered(run: RunLog) -> bool:
    calls = await recorded(run)
    return bool(calls) and not any(call["delivered"] for call in calls)


@at_every_point
async def test_redis_is_killed_and_started_again(settings, log, own_redis, way, model, point, stream):
    default = log.run("default")
    async with serving(settings.model_copy(update={"redis_url": way.url})) as url:
        await prepare(url, model)
        asker = Asker(url, stream=stream)
        async with held(point, way, model, asker) as let_go:
            await asyncio.to_thread(own_redis.kill)
            await asyncio.to_thread(own_redis.start)
            let_go()
            seen = await asker.answer()

        calls = await recorded(default)
        assert len(calls) <= len(model.requests)
        assert [call["delivered"] for call in calls] == ([True] if seen else [])
        if not seen:
            again = Asker(url, stream=stream)
            again.start()
            assert await again.answer() == TEXT
        await until(lambda: _none_in_flight(default))

    (row,) = await rows(default)
    assert row.response_ids == tuple(stub.token_ids(TEXT))
    await default.rollouts.end("r1", State.SUCCEEDED)
    assert await kinds(default) == ["event"]


async def _none_in_flight(run: RunLog) -> bool:
    return (await run.pause.state()).inflight == 0
