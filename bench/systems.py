"""What is measured: the stub model server by itself, and the gateways in front of it.

Invariants:
- every gateway is one process of its own with its admin key set, forwards to the same stub and has the same rollouts;
- Leyden's Redis is private, with its append-only file (`appendfsync everysec`), and agents' calls carry agents' tokens.

A further system is a function like those below and a line in `SYSTEMS`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
from redis.asyncio import Redis

from bench.answers import MODEL, Sizes
from bench.load import Target
from bench.processes import NotStarted, running
from leyden.auth import AgentClaims, Authority
from leyden.log import Log
from leyden.log.errors import RunMissing
from leyden.log.keys import RunKeys
from leyden.processes import free_port
from leyden.redis_server import RedisServer
from leyden.schemas import DEFAULT_ATTEMPT, DEFAULT_RUN
from leyden.triplet import MODEL_REQUEST

_KEY = "a-key-for-measuring-0123456789abcdef"
_BEGIN_SECONDS = 30.0
_REPOSITORY = Path(__file__).parent.parent
_ADMIN = {"authorization": f"Bearer {_KEY}"}


Sampled = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""What was sampled in a call: prompt ids, sampled ids, log probs."""


class Missing(RuntimeError):
    """A system is not installed; the message says how to do so."""


async def _cannot_count() -> int:
    return 0


async def _cannot_read(rollout_id: str) -> list[Sampled]:
    return []


async def _holds_nothing() -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class System:
    """One system, up and ready for load.

    `recorded` counts the calls on its record now; `sampled` reads what the record says of a rollout; `held` is what the
    record takes, in bytes, by where or how that is counted. `processes` are by role; of each, memory is read and CPU
    time.
    """

    base_url: str
    rollouts: Sequence[str]
    targets: list[Target]
    """One a rollout, in the same order."""
    processes: Mapping[str, psutil.Process]
    streams: bool = True
    keeps_record: bool = True
    recorded: Callable[[], Awaitable[int]] = _cannot_count
    sampled: Callable[[str], Awaitable[list[Sampled]]] = _cannot_read
    held: Callable[[], Awaitable[dict[str, int]]] = _holds_nothing


@dataclass(frozen=True, slots=True)
class Setting:
    """What the systems of one comparison share."""

    stub_url: str
    stub: psutil.Process
    folder: Path
    rollouts: list[str]
    agl_server: Path = Path(".venv-agl/bin/agl-server")
    rllm: Path = Path(".venv-rllm/bin/rllm-model-gateway")


@asynccontextmanager
async def stub_alone(setting: Setting) -> AsyncIterator[System]:
    """The stub without a gateway: what the load generator and the stub cost."""
    yield System(
        base_url=setting.stub_url,
        rollouts=[],
        targets=[Target("/v1/chat/completions", _KEY)],
        processes={"stub": setting.stub},
        keeps_record=False,
    )


@asynccontextmanager
async def agl_server(setting: Setting) -> AsyncIterator[System]:
    """Agent Lightning's server as its package installs it, in an environment of its own with Python 3.12.

    Raises:
        Missing: `python3.12 -m venv .venv-agl && .venv-agl/bin/pip install agentlightning==1.0.2`
    """
    if not setting.agl_server.exists():
        raise Missing("python3.12 -m venv .venv-agl && .venv-agl/bin/pip install agentlightning==1.0.2")
    port = free_port()
    folder = setting.folder / "agl"
    folder.mkdir(exist_ok=True)
    command = [
        setting.agl_server.absolute(),
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

            async def held() -> dict[str, int]:
                resident = process.memory_info().rss  # before it grows by what it is asked for
                events = [await _events(client, rollout) for rollout in setting.rollouts]
                return {"process": resident, "as JSON": sum(map(len, map(orjson.dumps, events)))}

            yield System(
                base_url=f"http://127.0.0.1:{port}",
                rollouts=setting.rollouts,
                targets=[_target(rollout, _KEY) for rollout in setting.rollouts],
                processes={"gateway": process},
                streams=False,
                recorded=recorded,
                sampled=lambda rollout: _sampled(client, rollout),
                held=held,
            )


@asynccontextmanager
async def rllm_model_gateway(setting: Setting) -> AsyncIterator[System]:
    """rLLM's gateway as its package installs it, with its SQLite file, and without a log line a call.

    Raises:
        Missing: `python3.12 -m venv .venv-rllm && .venv-rllm/bin/pip install rllm-model-gateway==0.1.0`
    """
    if not setting.rllm.exists():
        raise Missing("python3.12 -m venv .venv-rllm && .venv-rllm/bin/pip install rllm-model-gateway==0.1.0")
    port = free_port()
    command = [setting.rllm.absolute(), "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    command += ["--worker", f"{setting.stub_url}/v1", "--store", "sqlite", "--db-path", setting.folder / "rllm.db"]
    with running("rllm-model-gateway", command, setting.folder, port=port) as process:
        async with _client(port) as client:

            async def traces(rollout: str) -> list[dict[str, Any]]:
                return (await client.get(f"/sessions/{rollout}/traces")).raise_for_status().json()

            async def recorded() -> int:
                return sum([len(await traces(rollout)) for rollout in setting.rollouts])

            async def sampled(rollout: str) -> list[Sampled]:
                return [
                    (tuple(each["prompt_token_ids"]), tuple(each["completion_token_ids"]), tuple(each["logprobs"]))
                    for each in await traces(rollout)
                ]

            async def held() -> dict[str, int]:
                return {"process": process.memory_info().rss, "SQLite": (setting.folder / "rllm.db").stat().st_size}

            yield System(
                base_url=f"http://127.0.0.1:{port}",
                rollouts=setting.rollouts,
                targets=[Target(f"/sessions/{each}/v1/chat/completions", _KEY) for each in setting.rollouts],
                processes={"gateway": process},
                recorded=recorded,
                sampled=sampled,
                held=held,
            )


@dataclass(frozen=True, slots=True)
class Leyden:
    """Leyden's gateway over a Redis of its own."""

    workers: int = 1
    appendfsync: str = "everysec"
    env: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def __call__(self, setting: Setting) -> AsyncIterator[System]:
        port = free_port()
        name = f"leyden-{self.workers}-{self.appendfsync}"
        with RedisServer(setting.folder / f"{name}-redis", appendfsync=self.appendfsync) as server:
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
                async with _client(port) as client, _log(server.url) as log, Redis.from_url(server.url) as redis:
                    await _until_begun(log)
                    await _prepare(client, setting)
                    run, run_keys = log.run(DEFAULT_RUN), RunKeys(DEFAULT_RUN)
                    authority = Authority(_KEY)

                    async def token(rollout: str) -> str:
                        nonce = (await log.locate(rollout)).nonce
                        return authority.mint(AgentClaims(rollout, nonce, DEFAULT_ATTEMPT))

                    async def recorded() -> int:
                        entries = [await run.events.entries(rollout) for rollout in setting.rollouts]
                        return sum(entry.event_type == MODEL_REQUEST for each in entries for entry in each)

                    async def held() -> dict[str, int]:
                        keys = [
                            key for each in setting.rollouts for key in (run_keys.events(each), run_keys.rollout(each))
                        ]
                        sizes = [await redis.memory_usage(key, samples=0) for key in keys]
                        return {"Redis": sum(size or 0 for size in sizes), "process": process.memory_info().rss}

                    yield System(
                        base_url=f"http://127.0.0.1:{port}",
                        rollouts=setting.rollouts,
                        targets=[_target(rollout, await token(rollout)) for rollout in setting.rollouts],
                        processes={"gateway": process, "redis": psutil.Process(server.pid)},
                        recorded=recorded,
                        sampled=lambda rollout: _sampled(client, rollout),
                        held=held,
                    )


Starts = Callable[[Setting], AbstractAsyncContextManager[System]]

SYSTEMS: dict[str, Starts] = {
    "stub": stub_alone,
    "agl-server": agl_server,
    "rllm-model-gateway": rllm_model_gateway,
    "leyden": Leyden(),
    "leyden, 2 workers": Leyden(workers=2),
    "leyden, fsync always": Leyden(appendfsync="always"),
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
    rollouts = [{"rollout_id": rollout, "input": {"task": rollout}} for rollout in setting.rollouts]
    posts: list[tuple[str, list[dict[str, Any]]]] = [
        ("/api/models", [{"model": MODEL, "endpoint": f"{setting.stub_url}/v1"}])
    ]
    posts += [("/api/rollouts", rollouts[start : start + 500]) for start in range(0, len(rollouts), 500)]
    for path, body in posts:
        answer = await client.post(path, json=body)
        if answer.is_error:
            raise NotStarted(f"{answer.request.method} {answer.url} gave {answer.status_code}: {answer.text[:500]}")


async def _events(client: httpx.AsyncClient, rollout: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/rollouts/{rollout}/events", params={"event_type": "model_request"})
    return answer.raise_for_status().json()


async def _sampled(client: httpx.AsyncClient, rollout: str) -> list[Sampled]:
    return [sampled_in(event["data"]["response"]) for event in await _events(client, rollout)]


def sampled_in(response: dict[str, Any]) -> Sampled:
    """What a chat completion says was sampled."""
    choice = response["choices"][0]
    log_probs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return tuple(response["prompt_token_ids"]), tuple(choice["token_ids"]), tuple(log_probs)


@asynccontextmanager
async def stub_server(sizes: Sizes, folder: Path, answers: int) -> AsyncIterator[tuple[str, psutil.Process]]:
    """The stub model server as a process of its own: its address and process."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "bench.stub_server", "--port", str(port), "--answers", str(answers)),
        *("--prompt-tokens", str(sizes.prompt_tokens), "--answer-tokens", str(sizes.answer_tokens)),
    ]
    with running("stub", command, folder, port=port, cwd=_REPOSITORY) as process:
        yield f"http://127.0.0.1:{port}", process
