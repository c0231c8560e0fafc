"""What a gateway records of a conversation grows with what is said, not with how often it is sent."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import httpx
import orjson
import pytest
from redis.asyncio import Redis

from leyden.log import RunLog, keys
from leyden.log.encoding import LINEAR, WHOLE, encode_call
from leyden.log.prefixes import NOTHING
from leyden_gateway.proxy.prefixes import Creation, RecordedPrefixes
from leyden_gateway.settings import GatewaySettings
from tests.gateway.conftest import ADMIN, create, proxy, serving
from tests.gateway.stub import StubModel

JSON = dict[str, Any]
CALL = f"{proxy('r1')}/chat/completions"


class Agent:
    """Sends all that was said with each turn."""

    def __init__(self, api: httpx.AsyncClient, call: str = CALL) -> None:
        self.api = api
        self.call = call
        self.messages: list[JSON] = []

    async def say(self, turn: int, **more: Any) -> None:
        words = " ".join(f"word{turn}-{place}" for place in range(100))
        self.messages.append({"role": "user", "content": words})
        answer = await self.api.post(self.call, json={"model": "m", "messages": self.messages, **more})
        assert answer.status_code == 200, answer.text
        if not more.get("stream"):
            self.messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})


async def payloads(redis: Redis, rollout_id: str = "r1") -> list[bytes]:
    rows: Any = await redis.xrange(keys.RunKeys("default").events(rollout_id))
    return [fields[b"data"] for _, fields in rows if b"call" in fields]


async def test_each_turn_takes_as_much_and_is_read_whole(api, served: StubModel, redis: Redis, default: RunLog):
    await create(api)
    agent = Agent(api)
    for turn in range(12):
        await agent.say(turn, stream=turn % 2 == 1)

    sizes = [len(payload) for payload in await payloads(redis)]
    assert max(sizes[1:]) < 1.25 * min(sizes[1:])
    events = [event.data for event in await default.events.of_attempt("r1", "0")]
    assert [event["request"]["messages"] for event in events] == [each["messages"] for each in served.requests]
    got = (await api.get("/api/rollouts/r1/events")).json()
    assert [event["data"] for event in got] == events
    assert len(events[-1]["response"]["prompt_token_ids"]) > 1200


async def test_replicas_go_on_from_their_own_calls_alone(api, served, settings, redis, default: RunLog):
    await create(api)
    agent = Agent(api)
    async with serving(settings) as other_url, httpx.AsyncClient(base_url=other_url, headers=ADMIN) as other:
        for turn in range(8):
            agent.api = [api, other][turn % 2]
            await agent.say(turn)

    sizes = [len(payload) for payload in await payloads(redis)]
    assert max(sizes[2:]) < 1.5 * sizes[0]
    events = await default.events.of_attempt("r1", "0")
    assert [event.data["request"]["messages"] for event in events] == [each["messages"] for each in served.requests]


async def test_calls_at_once_and_in_branches_are_read_whole(api, served, default: RunLog):
    await create(api)
    agents = [Agent(api) for _ in range(4)]
    for turn in range(5):
        await asyncio.gather(*(agent.say(turn if place % 2 else turn * place) for place, agent in enumerate(agents)))

    events = await default.events.of_attempt("r1", "0")
    recorded = sorted(orjson.dumps(event.data["request"]["messages"]) for event in events)
    assert recorded == sorted(orjson.dumps(body["messages"]) for body in served.requests)


async def test_a_rollout_created_anew_shares_nothing_with_the_one_before(api, served, redis, default: RunLog):
    await create(api)
    agent = Agent(api)
    await agent.say(0)
    assert (await api.delete("/api/rollouts/r1")).status_code in (200, 204)
    await create(api)
    await agent.say(1)

    (event,) = await default.events.of_attempt("r1", "0")
    assert event.data["request"]["messages"] == served.requests[-1]["messages"]


async def test_a_call_that_redis_has_lost_is_not_gone_on_from(api, served, redis: Redis, default: RunLog):
    await create(api)
    agent = Agent(api)
    await agent.say(0)
    k = keys.RunKeys("default")
    kept: list[Any] = [await redis.dump(k.rollout("r1")), await redis.dump(k.events("r1"))]
    for turn in range(1, 4):
        await agent.say(turn)
    # As after a loss of power with appendfsync everysec, or a failover to a replica that was behind.
    await redis.delete(k.rollout("r1"), k.events("r1"))
    for key, dump in zip((k.rollout("r1"), k.events("r1")), kept, strict=True):
        await redis.restore(key, 0, dump)
    for turn in range(4, 7):
        await agent.say(turn)

    events = await default.events.of_attempt("r1", "0")
    sent = [body["messages"] for body in served.requests]
    assert [event.data["request"]["messages"] for event in events] == [sent[0], *sent[4:]]
    sizes = [len(payload) for payload in await payloads(redis)]
    assert sizes[1] > 1.3 * max(sizes[2:])
    assert (await api.get("/readyz")).status_code == 200


@pytest.mark.parametrize(("version", "memory"), [(1, 64 << 20), (2, 0)])
async def test_calls_are_recorded_whole_where_the_settings_say_so(
    served, settings: GatewaySettings, redis: Redis, default: RunLog, api, version: int, memory: int
):
    await create(api)
    changed = settings.model_copy(update={"payload_version": version, "prefix_memory_bytes": memory})
    async with serving(changed) as url, httpx.AsyncClient(base_url=url, headers=ADMIN) as whole:
        agent = Agent(whole)
        for turn in range(4):
            await agent.say(turn)
        written = await payloads(redis)
        assert {payload[0] for payload in written} == {version}
        assert len(written[3]) > 1.6 * len(written[0])
        # A gateway with other settings goes on in the same stream.
        agent.api = api
        for turn in range(4, 7):
            await agent.say(turn)

    last = await payloads(redis)
    assert {payload[0] for payload in last[4:]} == {LINEAR}
    assert len(last[6]) < 0.7 * len(last[4])
    events = await default.events.of_attempt("r1", "0")
    assert [event.data["request"]["messages"] for event in events] == [each["messages"] for each in served.requests]


def test_the_version_is_set_by_the_environment(monkeypatch):
    monkeypatch.setenv("LEYDEN_PAYLOAD_VERSION", "1")
    assert GatewaySettings().payload_version == WHOLE
    monkeypatch.delenv("LEYDEN_PAYLOAD_VERSION")
    assert GatewaySettings().payload_version == LINEAR


async def test_responses_that_name_the_one_before_find_it_in_a_long_rollout(api, served, default: RunLog):
    await create(api)
    url, previous = f"{proxy('r1')}/responses", None
    for turn in range(12):
        asked = {"model": "m", "input": f"turn {turn} " * 50, "previous_response_id": previous}
        answer = await api.post(url, json=asked)
        assert answer.status_code == 200, answer.text
        previous = answer.json()["id"]

    assert (await api.get(f"{url}/{previous}")).json()["id"] == previous
    last = (await default.events.of_attempt("r1", "0"))[-1].data
    assert len(last["request"]["messages"]) == 23


class TestTheMemory:
    """What a process remembers of recorded calls."""

    def call(self, rollout: int, turn: int) -> JSON:
        ids = [rollout + place for place in range(100 * (turn + 1))]
        messages = [{"role": "user", "content": f"{rollout} {place} " * 30} for place in range(turn + 1)]
        return {"request": {"messages": messages}, "response": {"prompt_token_ids": ids, "choices": []}}

    def test_it_stays_under_its_limit_and_keeps_the_rollouts_used_last(self):
        remembered = RecordedPrefixes(100_000)
        rollouts = [Creation("run", f"rollout-{place}", "nonce") for place in range(300)]
        for place, rollout in enumerate(rollouts):
            for turn in range(3):
                encoded = encode_call(self.call(place, turn), remembered.of(rollout))
                remembered.add(rollout, f"{place}-{turn}", encoded.marks)
                assert remembered.size_bytes <= 100_000
        assert remembered.of(rollouts[0]) is NOTHING
        assert remembered.of(rollouts[-1]) is not NOTHING
        assert encode_call(self.call(299, 3), remembered.of(rollouts[-1])).bases
        for rollout in rollouts:
            remembered.forget(rollout)
        assert remembered.size_bytes == 0

    def test_it_says_about_what_it_takes(self):
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        remembered = RecordedPrefixes(1 << 30)
        for place in range(200):
            rollout = Creation("run", f"rollout-{place}", f"nonce-{place:026}")
            for turn in range(12):
                encoded = encode_call(self.call(place, turn), remembered.of(rollout))
                remembered.add(rollout, f"{place:016x}{turn:016x}", encoded.marks)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert 0.7 * taken < remembered.size_bytes < 1.4 * taken

    def test_a_rollout_takes_a_few_kilobytes_however_long_it_is(self):
        remembered, rollout = RecordedPrefixes(1 << 30), Creation("run", "r", "n")
        for turn in range(300):
            call = {
                "request": {"messages": [f"{place} " * 50 for place in range(turn)]},
                "response": {"prompt_token_ids": list(range(20 * turn))},
            }
            remembered.add(rollout, f"{turn:032x}", encode_call(call, remembered.of(rollout)).marks)
            assert turn < 2 or f"{turn:032x}" in encode_call(call, remembered.of(rollout)).bases
        assert remembered.size_bytes < 10_000

    def test_an_agent_that_invents_parameters_takes_no_more(self):
        remembered, rollout = RecordedPrefixes(1 << 30), Creation("run", "r", "n")
        for turn in range(100):
            call = {"request": {f"parameter-{turn}-{place}": "x" * 500 for place in range(20)}}
            remembered.add(rollout, str(turn), encode_call(call, remembered.of(rollout)).marks)
        assert remembered.size_bytes < 10_000
