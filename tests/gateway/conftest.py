"""A gateway over real HTTP and a real Redis, with a scriptable model server behind it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from leyden.log import Log, RunLog, RunSettings
from leyden.processes import free_port
from leyden.redis_server import RedisServer
from leyden.schemas import Model
from leyden_gateway.app import create_app
from leyden_gateway.settings import GatewaySettings
from tests.gateway.stub import MODEL, StubModel

KEY = "the-admin-key-of-the-tests"
ADMIN = {"authorization": f"Bearer {KEY}"}

Serve = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncIterator[str]:
    """A gateway in this process, over real HTTP; gives its base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(settings), log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            await task
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed: it writes before it answers, also while its disk is busy."""
    with RedisServer(tmp_path / "redis", appendfsync="always") as server:
        yield server


@pytest.fixture
def settings(redis_url: str) -> GatewaySettings:
    """The settings of the tests' gateways."""
    return GatewaySettings(
        redis_url=redis_url,
        key=KEY,  # pyright: ignore[reportArgumentType]
        model=MODEL,
        disconnect_grace_seconds=2,
        close_timeout_seconds=3,
        upstream_timeout_seconds=5,
        endpoint_cooldown_seconds=0.2,
    )


@pytest.fixture
async def url(settings: GatewaySettings) -> AsyncIterator[str]:
    """The base URL of a running gateway."""
    async with serving(settings) as base:
        yield base


@pytest.fixture
async def api(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client with the admin key."""
    async with httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=30) as client:
        yield client


@pytest.fixture
async def model() -> AsyncIterator[StubModel]:
    """A model server that is not registered yet."""
    async with StubModel() as stub:
        yield stub


@pytest.fixture
async def served(api: httpx.AsyncClient, model: StubModel) -> StubModel:
    """A model server that is registered in run `default`."""
    answer = await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url, "version": 7}])
    assert answer.status_code == 201, answer.text
    return model


@pytest.fixture
def default(log: Log) -> RunLog:
    """Run `default` in the log."""
    return log.run("default")


def proxy(rollout_id: str, *, attempt: str = "0", mode: str = "train") -> str:
    """The OpenAI base path of an attempt."""
    return f"/proxy/rollout/{rollout_id}/attempt/{attempt}/mode/{mode}/openai/v1"


async def create(api: httpx.AsyncClient, rollout_id: str = "r1", **more: object) -> str:
    """Create a rollout in run `default`."""
    answer = await api.post("/api/rollouts", json=[{"rollout_id": rollout_id, "input": {"q": 1}, **more}])
    assert answer.status_code == 201, answer.text
    return rollout_id


def chat(content: str = "what is two and two", **more: object) -> dict:
    """The body of a chat completion."""
    return {"model": "agent-model", "messages": [{"role": "user", "content": content}], **more}


@pytest.fixture(autouse=True)
def fast_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait a hundredth of what they wait in earnest."""
    from leyden_gateway.proxy import call, upstream

    async def quick(retry: int, jitter: float) -> None:
        await asyncio.sleep(upstream.back_off_seconds(retry, jitter) / 100)

    monkeypatch.setattr(call, "back_off", quick)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a vLLM with a tiny random model: its own, or that of LEYDEN_TEST_VLLM_URL."""
    given = os.environ.get("LEYDEN_TEST_VLLM_URL")
    if given:
        yield given
        return
    from examples.models import tiny
    from examples.serve_vllm import VllmServer

    folder = tmp_path_factory.mktemp("vllm")
    tiny.make(folder / "tiny")
    server = VllmServer(
        model=folder / "tiny", name="tiny", port=free_port(), log=folder / "log", threads=1, kv_cache="64M"
    )
    with server:
        yield f"{server.url}/v1"


@pytest.fixture
async def seeded(log: Log, vllm: str) -> RunLog:
    """A run for calls that bring their own seed, so that the same call gives the same answer."""
    async with httpx.AsyncClient(base_url=vllm) as client:
        name = (await client.get("/models")).json()["data"][0]["id"]
    await log.runs.begin("seeded", RunSettings(model=name))
    await log.run("seeded").models.add([Model(model=name, endpoint=vllm)])
    return log.run("seeded")
