"""What is measured: the stub model server by itself, and the gateways in front of it.

Invariants:
- every gateway is one process of its own with its admin key set, forwards to the same stub and has the same rollouts;
- Leyden's Redis is private, with its append-only file (`appendfsync everysec`), and agents' calls carry agents' tokens.

A further system is a function like those below and a line in `SYSTEMS`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.answers import MODEL
from bench.load import Target
from bench.processes import NotStarted, running
from leyden.auth import AgentClaims, Authority
from leyden.log import Log
from leyden.log.errors import RunMissing
from leyden.processes import free_port
from leyden.redis_server import RedisServer
from leyden.schemas import DEFAULT_ATTEMPT, DEFAULT_RUN
from leyden.triplet import MODEL_REQUEST

_KEY = "a-key-for-measuring-0123456789abcdef"
_BEGIN_SECONDS = 30.0
_REPOSITORY = Path(__file__).parent.parent
_ADMIN = {"authorization": f"Bearer {_KEY}"}


async def _cannot_count() -> int:
    return 0


async def _cannot_read(rollout_id: str) -> list[dict[str, Any]]:
    return []


@dataclass(frozen=True, slots=True)
class System:
    """One system, up and ready for load.

    `recorded` counts the calls on its record now, None if it keeps none; `events` reads the `model_request` events of a
    rollout. `processes` are by role; memory is read of each, CPU time too.
    """

    base_url: str
    targets: list[Target]
    processes: Mapping[str, psutil.Process]
    streams: bool = True
    keeps_record: bool = True
    recorded: Callable[[], Awaitable[int]] = _cannot_count
    events: Callable[[str], Awaitable[list[dict[str, Any]]]] = _cannot_read


@dataclass(frozen=True, slots=True)
class Setting:
    """What the systems of one comparison share."""

    stub_url: str
    stub: psutil.Process
    folder: Path
    rollouts: list[str]
    agl_server: Path


@asynccontextmanager
async def stub_alone(setting: Setting) -> AsyncIterator[System]:
    """The stub without a gateway: what the load generator and the stub cost."""
    yield System(
        base_url=setting.stub_url,
        targets=[Target("/v1/chat/completions", _KEY)],
        processes={"stub": setting.stub},
        keeps_record=False,
    )


@asynccontextmanager
async def agl_server(setting: Setting) -> AsyncIterator[System]:
    """Agent Lightning's server as its package installs it."""
    port = free_port()
    folder = setting.folder / "agl"
    folder.mkdir(exist_ok=True)
    command = [
        setting.agl_server,
        "host=127.0.0.1",
        f"port={port}",
        f"key={_KEY}",
        f"default_proxy.model_name={MODEL}",
        f"hydra.run.dir={folder}",
    ]
    with running("agl-server", command, setting.folder, port=port, cwd=folder) as process:
        async with _client(port) as client:
            await _prepare(client, setting)

            async def recorded() -> int:
                return sum([len(await _events(client, rollout)) for rollout in setting.rollouts])

            yield System(
                base_url=f"http://127.0.0.1:{port}",
                targets=[_target(rollout, _KEY) for rollout in setting.rollouts],
                processes={"gateway": process},
                streams=False,
                recorded=recorded,
                events=lambda rollout: _events(client, rollout),
            )


@dataclass(frozen=True, slots=True)
class Leyden:
    """Leyden's gateway over a Redis of its own."""

    workers: int = 1
    env: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def __call__(self, setting: Setting) -> AsyncIterator[System]:
        port = free_port()
        name = f"leyden-{self.workers}"
        with RedisServer(setting.folder / f"{name}-redis") as server:
            env = {
                "LEYDEN_HOST": "127.0.0.1",
                "LEYDEN_PORT": str(port),
                "LEYDEN_KEY": _KEY,
                "LEYDEN_MODEL": MODEL,
                "LEYDEN_REDIS_URL": server.url,
                "LEYDEN_WORKERS": str(self.workers),
                **self.env,
            }
            command = [sys.executable, "-m", "leyden_gateway"]
            with running(name, command, setting.folder, port=port, env=env, cwd=_REPOSITORY) as process:
                async with _client(port) as client, _log(server.url) as log:
                    await _until_begun(log)
                    await _prepare(client, setting)
                    run = log.run(DEFAULT_RUN)
                    authority = Authority(_KEY)

                    async def token(rollout: str) -> str:
                        nonce = (await log.locate(rollout)).nonce
                        return authority.mint(AgentClaims(rollout, nonce, DEFAULT_ATTEMPT))

                    async def recorded() -> int:
                        entries = [await run.events.entries(rollout) for rollout in setting.rollouts]
                        return sum(entry.event_type == MODEL_REQUEST for each in entries for entry in each)

                    yield System(
                        base_url=f"http://127.0.0.1:{port}",
                        targets=[_target(rollout, await token(rollout)) for rollout in setting.rollouts],
                        processes={"gateway": process, "redis": psutil.Process(server.pid)},
                        recorded=recorded,
                        events=lambda rollout: _events(client, rollout),
                    )


Starts = Callable[[Setting], AbstractAsyncContextManager[System]]

SYSTEMS: dict[str, Starts] = {
    "stub": stub_alone,
    "agl-server": agl_server,
    "leyden": Leyden(),
    "leyden, 2 workers": Leyden(workers=2),
}
"""Every system by its name on the command line and in the tables."""


def _target(rollout: str, credential: str) -> Target:
    path = f"/proxy/rollout/{rollout}/attempt/{DEFAULT_ATTEMPT}/mode/train/openai/v1/chat/completions"
    return Target(path, credential)


def _client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=_ADMIN, timeout=120, trust_env=False)


@asynccontextmanager
async def _log(url: str) -> AsyncIterator[Log]:
    log = Log.connect(url)
    try:
        yield log
    finally:
        await log.close()


async def _until_begun(log: Log) -> None:
    """Wait until the gateway has begun run `default`, which it does beside listening."""
    async with asyncio.timeout(_BEGIN_SECONDS):
        while True:
            with suppress(RunMissing):
                await log.run(DEFAULT_RUN).settings()
                return
            await asyncio.sleep(0.02)


async def _prepare(client: httpx.AsyncClient, setting: Setting) -> None:
    models = [{"model": MODEL, "endpoint": f"{setting.stub_url}/v1"}]
    rollouts = [{"rollout_id": rollout, "input": {"task": rollout}} for rollout in setting.rollouts]
    for path, body in (("/api/models", models), ("/api/rollouts", rollouts)):
        answer = await client.post(path, json=body)
        if answer.is_error:
            raise NotStarted(f"{answer.request.method} {answer.url} gave {answer.status_code}: {answer.text[:500]}")


async def _events(client: httpx.AsyncClient, rollout: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/rollouts/{rollout}/events", params={"event_type": "model_request"})
    return answer.raise_for_status().json()
