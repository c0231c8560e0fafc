"""What a model server says that is no answer: on record as what it is, an honest error or a new try, never a sample.

Each case is tried in every protocol, by the provider's own client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import orjson
import pytest

from leyden.log import RunLog
from leyden.schemas import Event
from leyden_trainer.samples import Aggregation, Level, Samples, aggregate
from tests.gateway import stub
from tests.gateway.conftest import KEY, create, proxy
from tests.gateway.stub import JSON, TEXT, Script

PROTOCOLS = ["chat", "completions", "responses", "messages"]
ERRORS = (openai.APIError, anthropic.APIError)

in_every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
with_several_choices = pytest.mark.parametrize("protocol", ["chat", "completions"])


class Agent:
    """Asks in one protocol, by its official client, and gives the text of the answer."""

    def __init__(self, protocol: str, openai_client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
        self._ask: Callable[..., Any] = getattr(self, f"_{protocol}")
        self._openai = openai_client
        self._claude = claude

    async def ask(self, *, stream: bool, n: int = 1) -> str:
        """The text, of the first choice; of a stream only if it ended as a complete one does."""
        return await self._ask(stream, n)

    async def _chat(self, stream: bool, n: int) -> str:
        messages: Any = [{"role": "user", "content": "what is two and two"}]
        answer: Any = await self._openai.chat.completions.create(model="m", messages=messages, stream=stream, n=n)
        if not stream:
            return answer.choices[0].message.content
        chunks = [chunk async for chunk in answer]
        assert {choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason} == {*range(n)}
        said = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == 0]
        return "".join(said)

    async def _completions(self, stream: bool, n: int) -> str:
        answer: Any = await self._openai.completions.create(model="m", prompt="two and two is", stream=stream, n=n)
        if not stream:
            return answer.choices[0].text
        chunks = [chunk async for chunk in answer]
        assert {choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason} == {*range(n)}
        return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == 0)

    async def _responses(self, stream: bool, n: int) -> str:
        answer: Any = await self._openai.responses.create(model="m", input="what is two and two", stream=stream)
        if not stream:
            return answer.output_text
        events = [event async for event in answer]
        assert events[-1].type == "response.completed"
        return events[-1].response.output_text

    async def _messages(self, stream: bool, n: int) -> str:
        messages: Any = [{"role": "user", "content": "what is two and two"}]
        answer: Any = await self._claude.messages.create(model="m", max_tokens=64, messages=messages, stream=stream)
        if not stream:
            return answer.content[0].text
        events = [event async for event in answer]
        assert events[-1].type == "message_stop"
        return "".join(event.delta.text for event in events if event.type == "content_block_delta")


@asynccontextmanager
async def agent_at(url: str, protocol: str) -> AsyncIterator[Agent]:
    base = url + proxy("r1")
    claude = anthropic.AsyncAnthropic(
        base_url=f"{base.removesuffix('/openai/v1')}/anthropic", api_key=KEY, max_retries=0
    )
    async with openai.AsyncOpenAI(base_url=base, api_key=KEY, max_retries=0) as client, claude:
        yield Agent(protocol, client, claude)


@pytest.fixture
async def agent(api, url, protocol) -> AsyncIterator[Agent]:
    """An agent of rollout r1."""
    await create(api)
    async with agent_at(url, protocol) as agent:
        yield agent


async def recorded(run: RunLog) -> list[Event]:
    return await run.events.of_attempt("r1")


def samples(events: list[Event]) -> Samples:
    """What a trainer makes of an attempt."""
    return aggregate(events, Aggregation(Level.TRAJECTORY, max_prompt_length=1000, max_response_length=1000))


def change(**fields: Any) -> Callable[[JSON], None]:
    """Spoils a response's fields."""
    return lambda response: response.update(fields)


def change_choice(**fields: Any) -> Callable[[JSON], None]:
    """Spoils the fields of its first choice."""
    return lambda response: response["choices"][0].update(fields)


BAD_ANSWERS: dict[str, tuple[Script, str]] = {
    "not JSON": (stub.raw(b"<html>oops</html>"), "not JSON"),
    "cut off": (stub.raw(b'{"choices": [{"index": 0'), "not JSON"),
    "broken UTF-8": (stub.raw(b'{"choices": [{"index": 0, "text": "\xff"}]}'), "not JSON"),
    "not a number that JSON knows": (stub.raw(b'{"choices": [{"index": NaN}]}'), "not JSON"),
    "too deep": (stub.raw(b'{"choices": ' + b"[" * 300 + b"]" * 300 + b"}"), "deeper than 200"),
    "ids too deep": (stub.raw(b'{"prompt_token_ids": ' + b"[" * 300 + b"]" * 300 + b"}"), "deeper than 200"),
    "an error too deep to be said": (stub.raw(b'{"error": ' + b"[" * 1000 + b"]" * 1000 + b"}"), "deeper than 200"),
    "nothing": (stub.raw(b""), "status 200 without a body"),
    "no content": (stub.raw(b"", code=204), "status 204 without a body"),
    "not modified": (stub.raw(b"", code=304), "status 304 without a body"),
    "no status of HTTP": (stub.raw(b"{}", code=999), "gave status 999"),
    "a redirect in HTML": (stub.raw(b"<html>", code=308, content_type="text/html"), "status 308"),
    "a list": (stub.raw(b"[1, 2]"), "a JSON list"),
    "wrong content type": (stub.raw(b'{"choices": []}', content_type="text/html"), "content type text/html"),
    "an error inside": (stub.raw(b'{"error": {"message": "out of memory"}}'), "out of memory"),
    "an error beside an answer": (stub.answer(change=change(error="out of memory")), "out of memory"),
    "no choices": (stub.answer(change=change(choices=[])), "no choices"),
    "null choices": (stub.answer(change=change(choices=None)), "no choices"),
    "a choice that is none": (stub.answer(change=change(choices=[None])), "not an object"),
    "null among ids": (stub.answer(change=change_choice(token_ids=[1, None, 3, 4])), "None"),
    "ids that are no list": (stub.answer(change=change_choice(token_ids="1234")), "str"),
    "ids that are booleans": (stub.answer(change=change_choice(token_ids=[True] * 4)), "True"),
    "prompt ids that are none": (stub.answer(change=change(prompt_token_ids=[1.5])), "1.5"),
    "too few ids": (stub.answer(change=change_choice(token_ids=[1, 2])), "2 token ids and 4 log probs"),
    "too many ids": (stub.answer(change=change_choice(token_ids=[1] * 5)), "5 token ids and 4 log probs"),
    "a redirect": (stub.raw(b"{}", code=302), "302"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
@in_every_protocol
async def test_an_answer_that_is_none_is_a_502_and_no_sample(agent, served, default, case):
    served.otherwise, fault = BAD_ANSWERS[case]

    with pytest.raises(ERRORS, match=fault) as raised:
        await agent.ask(stream=False)

    assert raised.value.status_code == 502  # pyright: ignore[reportAttributeAccessIssue]
    (event,) = await recorded(default)
    assert (event.data["status"], event.data["http_status"], event.data["delivered"]) == ("error", 502, False)
    assert fault in event.data["fault"]
    assert len(served.requests) == 1
    assert samples([event]).rows == ()


@pytest.mark.parametrize("case", [case for case in BAD_ANSWERS if "among" not in case])
@in_every_protocol
async def test_an_answer_that_is_none_where_a_stream_was_asked_for_is_one_too(agent, served, default, case):
    script, _ = BAD_ANSWERS[case]

    async def whole(body: JSON, request: Any) -> Any:
        return await script(body | {"stream": False}, request)

    served.otherwise = whole

    with pytest.raises(ERRORS):
        await agent.ask(stream=True)

    (event,) = await recorded(default)
    assert (event.data["status"], event.data["http_status"], event.data["delivered"]) == ("error", 502, False)
    assert samples([event]).rows == ()


@in_every_protocol
async def test_a_good_answer_where_a_stream_was_asked_for_is_no_stream(agent, served, default):
    async def whole(body: JSON, request: Any) -> Any:
        return await stub.answer()(body | {"stream": False}, request)

    served.otherwise = whole

    with pytest.raises(ERRORS, match="where a stream was asked for"):
        await agent.ask(stream=True)

    assert samples(await recorded(default)).rows == ()


def chunks_of(body: JSON, text: str = TEXT) -> list[bytes]:
    """The payloads of a good stream."""
    if "prompt" in body:
        chunks = stub.completion_chunks(stub.completion_response(body, text), usage=True)
    else:
        chunks = stub.chat_chunks(stub.chat_response(body, text), usage=True)
    return [*map(orjson.dumps, chunks), b"[DONE]"]


def spoiled(spoil: Callable[[list[bytes]], list[bytes]], *, cut: bool = False) -> Script:
    """Stream a good answer's chunks, changed."""

    async def script(body: JSON, request: Any) -> Any:
        return await stub.events(*spoil(chunks_of(body)), cut=cut)(body, request)

    return script


def at(place: int, payload: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Puts a chunk before that place."""
    return lambda chunks: [*chunks[:place], payload, *chunks[place:]]


BAD_STREAMS: dict[str, tuple[Script, str]] = {
    "an error inside": (spoiled(at(3, b'{"error": {"message": "engine died"}}')), "engine died"),
    "an error after the end": (spoiled(at(-1, b'{"error": {"message": "engine died"}}')), "engine died"),
    "an error that is a text": (spoiled(at(3, b'{"error": "engine died"}')), "engine died"),
    "not JSON": (spoiled(at(3, b"{oops")), "not a chunk"),
    "no object": (spoiled(at(3, b"[1]")), "not an object"),
    "no choices": (spoiled(at(3, b'{"choices": null}')), "choices are None"),
    "a choice that is none": (spoiled(at(3, b'{"choices": [7]}')), "not an object"),
    "ids that are no list": (spoiled(at(3, b'{"choices": [{"index": 0, "token_ids": 7}]}')), "token_ids are int"),
    "null among ids": (spoiled(at(3, b'{"choices": [{"index": 0, "token_ids": [null]}]}')), "None"),
    "an id without a log prob": (spoiled(at(3, b'{"choices": [{"index": 0, "token_ids": [7]}]}')), "5 token ids and 4"),
    "done before the end": (spoiled(lambda chunks: [*chunks[:3], b"[DONE]"]), "finish reason"),
    "ended before the end": (spoiled(lambda chunks: chunks[:3]), "finish reason"),
    "cut in the middle": (spoiled(lambda chunks: chunks[:3], cut=True), "the stream broke"),
    "cut in a chunk": (spoiled(lambda chunks: [*chunks[:3], chunks[3][:20]]), "not a chunk"),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
@in_every_protocol
async def test_a_stream_that_goes_wrong_is_an_error_and_no_sample(agent, served, default, case):
    served.otherwise, fault = BAD_STREAMS[case]

    with pytest.raises(ERRORS, match=fault):
        await agent.ask(stream=True)

    (event,) = await recorded(default)
    assert (event.data["status"], event.data["http_status"], event.data["delivered"]) == ("error", 502, False)
    assert fault in event.data["fault"]
    assert event.data["response"]["choices"][0]["token_ids"], "what had come is on record"
    assert len(served.requests) == 1
    assert samples([event]).rows == ()


@pytest.mark.parametrize("cut", [False, True])
@in_every_protocol
async def test_a_stream_that_ends_anywhere_is_complete_or_an_error(agent, served, default, cut):
    """However far it comes: the agent sees a complete answer, or the log holds none and it sees an error."""
    told = 0
    for length in range(9):
        before = len(await recorded(default))
        served.scripts = [spoiled(lambda chunks, length=length: chunks[:length], cut=cut)] * 6
        try:
            seen = await agent.ask(stream=True)
        except ERRORS:
            seen = None
        *_, event = events = await recorded(default)
        assert len(events) == before + 1
        assert (event.data["status"] == "ok") == (event.data["delivered"] is True) == (seen == TEXT), length
        told += seen is not None
        served.scripts = []

    rows = samples(await recorded(default)).rows
    assert told
    assert [row.response_ids for row in rows] == [tuple(stub.token_ids(TEXT))]


@pytest.mark.parametrize("stream", [False, True])
@in_every_protocol
async def test_an_aborted_answer_is_asked_again_and_only_the_answer_is_a_sample(agent, served, default, stream):
    served.scripts = [stub.answer("" if stream else "the", finish_reason="abort")] * 2

    assert await agent.ask(stream=stream) == TEXT

    events = await recorded(default)
    assert [event.data["finish_reason"] for event in events] == ["abort", "abort", "stop"]
    assert [event.data["delivered"] for event in events] == [False, False, True]
    (row,) = samples(events).rows
    assert row.response_ids == tuple(stub.token_ids(TEXT))


@in_every_protocol
async def test_an_answer_that_is_aborted_after_its_first_token_is_an_error(agent, served, default):
    served.otherwise = stub.answer("the answer", finish_reason="abort")

    with pytest.raises(ERRORS, match="aborted"):
        await agent.ask(stream=True)

    events = await recorded(default)
    assert [(event.data["finish_reason"], event.data["delivered"]) for event in events] == [("abort", False)]
    assert samples(events).rows == ()


def _second(**fields: Any) -> Callable[[JSON], None]:
    return lambda response: response["choices"][-1].update(fields)


MIXED: dict[str, Callable[[JSON], None]] = {
    "one is aborted": _second(finish_reason="abort"),
    "one has unequal ids": _second(token_ids=[1]),
    "one has null ids": _second(token_ids=[None] * 4),
    "one is none": lambda response: response["choices"].__setitem__(1, None),
}


@pytest.mark.parametrize(
    ("case", "stream"),
    [(case, stream) for case in MIXED for stream in (False, True) if not stream or case != "one is none"],
)
@with_several_choices
async def test_of_several_choices_one_bad_one_spoils_all(agent, served, default, case, stream):
    served.otherwise = stub.answer(change=MIXED[case])

    with pytest.raises(ERRORS):
        await agent.ask(stream=stream, n=2)

    events = await recorded(default)
    assert events
    assert not any(event.data["delivered"] for event in events)
    assert samples(events).rows == ()


@with_several_choices
async def test_a_stream_that_ends_before_a_choice_has_begun_is_none(agent, served, default):

    async def first_choice_only(body: JSON, request: Any) -> Any:
        return await stub.events(*chunks_of(body | {"n": 1})[:-2])(body, request)

    served.otherwise = first_choice_only

    with pytest.raises(ERRORS, match="every choice"):
        await agent.ask(stream=True, n=2)

    (event,) = await recorded(default)
    assert (event.data["status"], event.data["delivered"]) == ("error", False)
    assert samples([event]).rows == ()
