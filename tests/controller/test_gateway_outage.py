"""Agents that fail because the gateway is away are not blamed for it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

from leyden.log import RunLog
from leyden.processes import free_port
from leyden.schemas import State
from leyden_controller.gateway import Gateway
from tests.controller.support import StartController, asked, outcomes, started

# It connects once and gives up at once if that fails, as programs do that do not retry.
AGENT = "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 5)"


@asynccontextmanager
async def listening(port: int):
    """Something that takes connections, as a gateway does."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port, family=socket.AF_INET)
    async with server:
        yield


async def test_a_gateway_is_lost_only_if_it_was_reached_before():
    port = free_port()
    gateway = Gateway(f"http://127.0.0.1:{port}")
    assert not await gateway.lost()
    async with listening(port):
        assert await gateway.look()
        assert not await gateway.lost()
    assert await gateway.lost()
    assert not await Gateway("http://no-such-host.invalid").look()


async def test_waiting_for_a_gateway_ends_when_it_is_back_and_when_asked_to_hurry():
    port = free_port()
    gateway = Gateway(f"http://127.0.0.1:{port}")
    async with listening(port):
        await gateway.look()
    hurry = asyncio.Event()
    waiting, hurried = (asyncio.create_task(gateway.back(each, 30)) for each in (asyncio.Event(), hurry))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    hurry.set()
    await asyncio.wait_for(hurried, 5)
    async with listening(port):
        await asyncio.wait_for(waiting, 5)


async def test_rollouts_whose_agents_could_not_reach_the_gateway_are_tried_again_when_it_is_back(
    run: RunLog, start_controller: StartController
):
    port = free_port()
    how = {"command": ["python3", "-c", AGENT], "env_map": {"PORT": str(port)}}
    async with listening(port):
        await start_controller(gateway_url=f"http://127.0.0.1:{port}")
        await run.rollouts.create(asked("before", **how))
        assert (await outcomes(run, 1))["before"].state is State.SUCCEEDED
    await run.rollouts.create(asked("during", **how))
    async with asyncio.timeout(20):
        while not await run.rollouts.attempts("during"):
            await asyncio.sleep(0.05)

    async with listening(port):
        found = await outcomes(run, 2)

    assert found["during"].state is State.SUCCEEDED
    assert await started(run, "during") == ["0", "1"]
    first, *_ = await run.events.of_attempt("during", "0")
    assert "can't be reached" in first.data["message"]
