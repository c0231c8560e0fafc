"""Clients that go away, and their retries."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.gateway import stub
from tests.gateway.conftest import ADMIN, chat, create, proxy, serving
from tests.gateway.stub import TEXT

CALL = f"{proxy('r1')}/chat/completions"
RETRY = {"x-stainless-retry-count": "1"}


async def give_up(url: str, body: dict, headers: dict | None = None, seconds: float = 0.2) -> None:
    """Call, and go away before the answer."""
    async with httpx.AsyncClient(base_url=url, headers=ADMIN | (headers or {})) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            async with impatient.stream("POST", CALL, json=body, timeout=seconds) as answer:
                await answer.aread()


async def calls_once_recorded(run, count: int = 1) -> list[dict]:
    """The calls on record, once there are so many."""
    for _ in range(200):
        calls = [event.data for event in await run.events.of_attempt("r1") if event.event_type == "model_request"]
        if len(calls) >= count:
            return calls
        await asyncio.sleep(0.02)
    raise AssertionError(f"fewer than {count} calls on record")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_runs_on_without_its_client_and_is_recorded_undelivered(url, api, served, default, stream):
    gate = asyncio.Event()
    served.otherwise = stub.once(gate)
    await create(api)

    await give_up(url, chat(stream=stream))
    gate.set()

    (call,) = await calls_once_recorded(default)
    assert (call["status"], call["delivered"]) == ("ok", False)
    assert call["response"]["choices"][0]["token_ids"] == stub.token_ids(TEXT)
    assert served.cancelled == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_after_the_grace_upstream_is_cancelled_and_what_was_sampled_recorded(
    settings, log, served, api, default, stream
):
    gates = [asyncio.Event(), asyncio.Event()]
    served.otherwise = stub.paced(gates) if stream else stub.once(gates[0])
    await create(api)
    async with serving(settings.model_copy(update={"disconnect_grace_seconds": 0.2})) as other:
        await give_up(other, chat(stream=stream))
        (call,) = await calls_once_recorded(default)

    assert (call["http_status"], call["status"], call["delivered"]) == (499, "error", False)
    if stream:
        assert call["response"]["choices"][0]["token_ids"] == stub.token_ids("the answer")[:1]
    assert served.cancelled == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [RETRY, {"idempotency-key": "once"}])
async def test_a_retry_is_given_the_undelivered_answer_once(url, api, served, default, stream, headers):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    first = headers if "idempotency-key" in headers else {}
    await create(api)
    await give_up(url, chat(stream=stream), first)
    gate.set()
    await calls_once_recorded(default)
    await asyncio.sleep(0.1)

    retried = await api.post(CALL, json=chat(stream=stream), headers=headers)
    again = await api.post(CALL, json=chat(stream=stream), headers=headers)

    assert retried.status_code == again.status_code == 200
    if stream:
        assert retried.text.count(TEXT) == 1
        assert retried.text.endswith("data: [DONE]\n\n")
    else:
        assert retried.json()["choices"][0]["message"]["content"] == TEXT
        assert "token_ids" not in retried.text
    assert len(served.requests) == 2
    calls = await calls_once_recorded(default, 2)
    assert [call["delivered"] for call in calls] == [False, True]


async def test_a_retry_that_arrives_while_its_first_call_runs_waits_for_it(url, api, served, default):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    await create(api)
    await give_up(url, chat())
    retry = asyncio.create_task(api.post(CALL, json=chat(), headers=RETRY))
    await asyncio.sleep(0.2)
    gate.set()

    assert (await retry).status_code == 200
    assert len(served.requests) == 1


async def test_of_many_retries_on_two_replicas_one_gets_the_answer(url, api, served, default, settings):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    await create(api)
    await give_up(url, chat())
    gate.set()
    await calls_once_recorded(default)
    await asyncio.sleep(0.1)
    async with serving(settings) as second, httpx.AsyncClient(base_url=second, headers=ADMIN) as other:
        answers = await asyncio.gather(
            *(client.post(CALL, json=chat(), headers=RETRY) for client in (api, other) for _ in range(5))
        )

    assert {answer.status_code for answer in answers} == {200}
    assert len(served.requests) == 1 + 9


async def test_another_body_or_no_retry_header_is_sampled_anew(url, api, served, default):
    gate = asyncio.Event()
    served.scripts = [stub.once(gate)]
    await create(api)
    await give_up(url, chat())
    gate.set()
    await calls_once_recorded(default)
    await asyncio.sleep(0.1)

    await api.post(CALL, json=chat("something else"), headers=RETRY)
    await api.post(CALL, json=chat())

    assert len(served.requests) == 3


async def test_two_calls_alike_made_in_parallel_are_two_samples(api, served, default):
    await create(api)

    await asyncio.gather(*(api.post(CALL, json=chat(), headers={"x-stainless-retry-count": "0"}) for _ in range(2)))

    assert len(served.requests) == 2
    assert len(await calls_once_recorded(default, 2)) == 2


async def test_two_calls_alike_on_two_replicas_are_two_samples(api, served, default, settings):
    await create(api)
    async with serving(settings) as second, httpx.AsyncClient(base_url=second, headers=ADMIN) as other:
        answers = await asyncio.gather(*(client.post(CALL, json=chat()) for client in (api, other)))

    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(served.requests) == 2
    assert [call["delivered"] for call in await calls_once_recorded(default, 2)] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_two_calls_alike_that_were_both_missed_go_to_one_retry_each(api, url, served, default, settings, stream):
    """On whichever replica they ask; who asks once more is sampled anew."""
    served.scripts = [stub.answer(text) for text in ("the first one", "the second one", "the third one")]
    gate, body = asyncio.Event(), chat(stream=stream)
    served.scripts[:2] = [stub.once(gate, then) for then in served.scripts[:2]]
    await create(api)
    async with serving(settings) as second, httpx.AsyncClient(base_url=second, headers=ADMIN) as other:
        await asyncio.gather(give_up(url, body), give_up(second, body))
        gate.set()
        await calls_once_recorded(default, 2)
        await asyncio.sleep(0.1)
        answers = [(await client.post(CALL, json=body, headers=RETRY)).text for client in (other, other, api)]

    told = [next(word for word in ("first", "second", "third") if word in answer) for answer in answers]
    assert sorted(told[:2]) == ["first", "second"]
    assert told[2] == "third"
    assert len(served.requests) == 3


async def test_a_client_that_leaves_between_two_tries_leaves_nothing_open(url, api, served, default):
    served.otherwise = stub.status(500)
    await create(api)
    from leyden_gateway.proxy import call

    async def long(retry: int, jitter: float) -> None:
        await asyncio.sleep(5)

    quick, call.back_off = call.back_off, long
    try:
        await give_up(url, chat())
        await asyncio.sleep(0.2)
    finally:
        call.back_off = quick

    assert (await default.pause.state()).inflight == 0
    assert len(served.requests) == 1
