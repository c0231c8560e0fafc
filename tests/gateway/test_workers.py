"""Several worker processes on one port."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy
from tests.gateway.processes import GatewayProcess
from tests.gateway.stub import MODEL

pytestmark = pytest.mark.timeout(300)


def workers_of(pid: int) -> list[int]:
    """The processes that serve: children of the supervisor that run the gateway's code."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_a_worker_that_dies_is_replaced_and_what_it_had_open_no_longer_counts(redis_url, tmp_path, model):
    started, gate = asyncio.Event(), asyncio.Event()
    async with (
        GatewayProcess(redis_url, tmp_path, workers=2) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=ADMIN, timeout=60) as api,
    ):
        await api.post("/api/models", json=[{"model": MODEL, "endpoint": model.url}])
        await create(api)
        model.scripts = [stub.once(gate, started=started)]
        call = asyncio.create_task(api.post(f"{proxy('r1')}/chat/completions", json=chat()))
        await started.wait()
        assert "leyden_gateway_inflight_calls 1.0" in await metrics(gateway.url)
        before = set(workers_of(gateway.pid))
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await call

        assert await call_until_served(gateway.url) == 200
        assert "leyden_gateway_inflight_calls 0.0" in await metrics(gateway.url)
        assert not before & set(workers_of(gateway.pid))


async def call_until_served(url: str) -> int:
    """The status of a call, made again while nobody listens."""
    async with httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as client:
        for _ in range(300):
            try:
                return (await client.post(f"{proxy('r1')}/chat/completions", json=chat())).status_code
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise AssertionError("no worker came back")


async def metrics(url: str) -> str:
    async with httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as client:
        return (await client.get("/metrics")).text
