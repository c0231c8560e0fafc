"""What a call takes is given back when it is over, not when the garbage collector next comes."""

from __future__ import annotations

import asyncio
import gc

import pytest

from leyden_gateway.proxy.call import ModelCall
from leyden_gateway.proxy.client import Client
from tests.gateway.conftest import chat, create, proxy


def _alive() -> int:
    return sum(isinstance(each, Client | ModelCall) for each in gc.get_objects())


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_call_waits_for_the_garbage_collector(api, served, stream):
    await create(api)
    url, body = f"{proxy('r1')}/chat/completions", chat(stream=stream)
    await api.post(url, json=body)  # the first one makes connections, and errors that are kept with their frames
    gc.collect()
    gc.disable()
    try:
        before = _alive()
        for _ in range(5):
            assert (await api.post(url, json=body)).status_code == 200
        await asyncio.sleep(0.05)
        assert _alive() == before
    finally:
        gc.enable()
