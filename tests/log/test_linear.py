"""Calls that go on from earlier ones are recorded by what is new in them, and read whole."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import random
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.log import Log, RunLog, RunSettings, decode, encode, keys
from leyden.log.encoding import LINEAR, WHOLE, BaseUnknown, EncodedCall, PayloadInvalid, PayloadRefused, encode_call
from leyden.log.errors import BaseMissing
from leyden.log.prefixes import NOTHING, Prefixes
from leyden.schemas import NewRollout, State
from tests.log.test_encoding import answer, json_values, paths, same

JSON = dict[str, Any]
WORDS = ["the ", "of ", "and ", "to ", "in ", "a ", "is ", "that ", "for ", "it ", "as ", "was ", "with ", "be ", "on "]


def text(draw: random.Random, words: int) -> str:
    """Text that compresses about as English does."""
    return "".join(draw.choice(WORDS) + str(draw.randrange(1000)) for _ in range(words))


class Conversation:
    """An agent's rollout: each turn sends all that was said, and its tokens, once more."""

    def __init__(self, seed: int = 0, tools: int = 6) -> None:
        self.draw = random.Random(seed)
        self.messages: list[JSON] = [{"role": "system", "content": text(self.draw, 120)}]
        self.ids = [self.draw.randrange(150_000) for _ in range(300)]
        self.tools = [
            {"type": "function", "function": {"name": f"tool{place}", "description": text(self.draw, 60)}}
            for place in range(tools)
        ]
        self.turns = 0

    def call(self, asked: int = 100, tokens: int = 40) -> JSON:
        """The event of the next turn."""
        draw = self.draw
        self.messages.append({"role": "user", "content": text(draw, asked)})
        self.ids += [draw.randrange(150_000) for _ in range(asked)]
        response = answer(0, tokens, seed=draw.randrange(1 << 30))
        response["prompt_token_ids"] = [*self.ids]
        said = response["choices"][0]
        data = {
            "model": "m",
            "request": {"model": "m", "messages": [*self.messages], "tools": self.tools, "temperature": 1.0},
            "response": response,
            "latency_ms": 12.5,
            "call_id": f"{self.turns:032x}",
        }
        self.messages.append(said["message"])
        self.ids += said["token_ids"]
        self.turns += 1
        return orjson.loads(orjson.dumps(data))


class Writer:
    """What one replica knows of a rollout."""

    def __init__(self) -> None:
        self.earlier = NOTHING

    def write(self, call_id: str, data: JSON, **how: Any) -> EncodedCall:
        encoded = encode_call(data, self.earlier, **how)
        self.earlier = self.earlier.after(call_id, encoded.marks)
        return encoded


def read(stream: list[tuple[str, bytes]]) -> list[JSON]:
    """All calls of a stream, in order."""
    calls: dict[str, JSON] = {}
    for call_id, payload in stream:
        calls[call_id] = decode(payload, calls)
    return list(calls.values())


def test_fifty_turns_take_a_twentieth_of_their_json_and_a_tenth_of_whole_payloads():
    conversation, writer = Conversation(), Writer()
    calls = [conversation.call(asked=1000, tokens=250) for _ in range(50)]
    stream = [(call["call_id"], writer.write(call["call_id"], call, parsed=True).payload) for call in calls]

    assert len(calls[-1]["response"]["prompt_token_ids"]) > 60_000
    size = sum(len(payload) for _, payload in stream)
    assert size < sum(len(orjson.dumps(call)) for call in calls) / 20
    assert size < sum(len(encode(call)) for call in calls) / 10
    assert same(read(stream), calls)


def test_a_turn_takes_as_much_whether_it_is_the_second_or_the_fiftieth():
    conversation, writer = Conversation(), Writer()
    sizes = [len(writer.write(call["call_id"], call).payload) for call in (conversation.call() for _ in range(50))]

    assert max(sizes[1:]) < 1.1 * min(sizes[1:])
    assert sizes[1] < sizes[0] / 2


def test_a_call_goes_on_from_the_answer_before_it_and_has_the_first_ones_tools():
    conversation, writer = Conversation(), Writer()
    first, second, third = (writer.write(call["call_id"], call) for call in (conversation.call() for _ in range(3)))

    assert first.bases == ()
    assert set(second.bases) == {f"{0:032x}"}
    assert set(third.bases) == {f"{0:032x}", f"{1:032x}"}


@pytest.mark.parametrize("kept", [1, 10, 100])
def test_a_template_that_ends_prompts_otherwise_than_it_goes_on_costs_a_few_tokens(kept: int):
    """As when reasoning is left out of what is said again."""
    writer, draw = Writer(), random.Random(0)
    history = [draw.randrange(150_000) for _ in range(4000)]
    opening = [draw.randrange(150_000) for _ in range(8)]
    sizes = []
    for turn in range(4):
        call = {"response": {"prompt_token_ids": history + opening, "choices": [{"token_ids": [5] * 50}]}}
        sizes.append(len(writer.write(str(turn), call).payload))
        history += [draw.randrange(150_000) for _ in range(kept)]

    assert max(sizes[1:]) < 400 + 4 * kept


def test_nothing_is_shared_with_a_call_that_is_not_on_record():
    conversation = Conversation()
    encode_call(conversation.call(), NOTHING)
    assert encode_call(conversation.call(), NOTHING).bases == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0.0, -0.0), (None, "null"), ([1], [[1]]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ("1", 1)],
)
def test_what_only_equals_an_earlier_value_is_not_taken_for_it(one: Any, other: Any):
    padding = "x" * 500
    for part in ("messages", "tools", "response_format"):
        writer = Writer()

        def call(value: Any, part: str = part) -> JSON:
            whole = {"value": value, "padding": padding}
            return {"request": {part: whole if part == "response_format" else [whole, whole]}}

        stream = [
            (str(place), writer.write(str(place), call(value)).payload) for place, value in enumerate([one, other])
        ]
        assert same(read(stream), [call(one), call(other)])


def test_long_texts_and_completions_prompts_are_shared_too():
    writer, draw = Writer(), random.Random(0)
    prompt, ids, sizes, calls = text(draw, 3000) + "é" * 5000, [draw.randrange(150_000) for _ in range(3000)], [], []
    for turn in range(4):
        said = [draw.randrange(150_000) for _ in range(30)]
        calls.append(
            {
                "request": {"prompt": prompt if turn % 2 else [*ids], "suffix": prompt},
                "response": {"choices": [{"prompt_token_ids": [*ids], "token_ids": said, "text": "é"}]},
            }
        )
        prompt, ids = prompt + "é and so on", ids + said
    stream = [(str(turn), writer.write(str(turn), call).payload) for turn, call in enumerate(calls)]
    sizes = [len(payload) for _, payload in stream]

    assert max(sizes[2:]) < sizes[0] / 10
    assert same(read(stream), calls)


def experts(rows: list[list[int]], layers: int = 4, descr: str = "|u1") -> str:
    """What vLLM reports: base64 of the array (tokens, layers, experts) as NumPy saves it."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({len(rows)}, {layers}, 2), }}"
    head = head.ljust(128 - 10 - 1) + "\n"
    raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + b"".join(map(bytes, rows))
    return base64.b64encode(raw).decode()


def test_the_experts_of_a_prompts_tokens_are_recorded_once():
    writer, draw = Writer(), random.Random(0)

    def row() -> list[int]:
        return [draw.randrange(128) for _ in range(8)]

    rows, calls = [row() for _ in range(3000)], []
    for _ in range(5):
        calls.append({"routed_experts": experts(rows)})
        rows = rows[:-1] + [row() for _ in range(40)]
    stream = [(str(turn), writer.write(str(turn), call).payload) for turn, call in enumerate(calls)]

    assert max(len(payload) for _, payload in stream[1:]) < 600
    assert len(stream[0][1]) < 3000 * 8
    assert same(read(stream), calls)


@given(cut=st.integers(0, 400), put=st.text(st.characters(codec="ascii"), max_size=3), rows=st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_what_only_looks_like_experts_comes_back_as_it_was(cut: int, put: str, rows: int):
    whole = experts([[place % 256] * 8 for place in range(rows)])
    writer, calls = (
        Writer(),
        [{"routed_experts": each} for each in (whole, whole[:cut] + put + whole[cut + 1 :], whole)],
    )
    stream = [(str(turn), writer.write(str(turn), call).payload) for turn, call in enumerate(calls)]
    assert same(read(stream), calls)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_experts_are_known_as_numpy_saves_them(dtype: str):
    numpy = pytest.importorskip("numpy")
    writer, sizes, calls = Writer(), [], []
    array = numpy.random.default_rng(0).integers(0, 128, (500, 6, 8)).astype(dtype)
    for tokens in (450, 500):
        file = io.BytesIO()
        numpy.save(file, array[:tokens], allow_pickle=False)
        calls.append({"routed_experts": base64.b64encode(file.getvalue()).decode()})
    stream = [(str(turn), writer.write(str(turn), call).payload) for turn, call in enumerate(calls)]
    sizes = [len(payload) for _, payload in stream]
    assert sizes[1] < sizes[0] / 5
    assert same(read(stream), calls)


def test_experts_that_an_earlier_call_does_not_have_are_damage():
    writer = Writer()
    call = {"routed_experts": experts([[place % 256] * 8 for place in range(50)])}
    writer.write("0", call)
    payload = writer.write("1", call).payload
    for other in (experts([[1] * 8] * 20), None, 5, "x" * 500):
        with pytest.raises(PayloadRefused, match="damaged payload"):
            decode(payload, {"0": {"routed_experts": other}})


ODD_IDS = st.sampled_from([True, False, 1.0, -1, 2**31, -(2**31), 2**40, None, "7", [7]])
ids = st.lists(st.integers(0, 9), min_size=0, max_size=40)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text(min_size=60, max_size=90)})
    | json_values,
    max_size=3,
)


@st.composite
def turns(draw: st.DrawFn) -> list[JSON]:
    """How calls follow from earlier ones: which they go on from, how much of it they keep, and what they add."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "writer": st.integers(0, 2),
                    "forgets": st.booleans() if draw(st.booleans()) else st.just(False),
                    "from": st.integers(0, 30),
                    "keeps": st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 0.0]),
                    "messages": messages,
                    "ids": ids,
                    "said": ids,
                    "odd": st.none() | st.tuples(st.integers(0, 10_000), ODD_IDS | json_values),
                    "tools": st.sampled_from([0, 0, 0, 1, 2]),
                    "where": st.sampled_from(["response", "response", "choice", "prompt", "nowhere"]),
                    "version": st.sampled_from([LINEAR, LINEAR, LINEAR, WHOLE]),
                    "closes_after": st.sampled_from([0, 0, 0, 1, 2]),
                    "late": st.booleans(),
                }
            ),
            min_size=1,
            max_size=9,
        )
    )


TOOLS = [
    [{"name": "a", "description": "d" * 300, "n": 1}],
    [{"name": "a", "description": "d" * 300, "n": True}, {"x": 2**70, "y": ["\ud800"]}],
    [{"name": "a", "description": "d" * 300, "n": 1.0}, {"name": "b"}],
]


def call_of(turn: JSON, histories: list[tuple[list, list]]) -> JSON:
    """The event of a turn; `histories` are the messages and ids of the calls so far, to which it is added."""
    said, known = turn["messages"], [*turn["ids"]]
    if histories:
        before_messages, before_ids = histories[turn["from"] % len(histories)]
        said = before_messages[: round(len(before_messages) * turn["keeps"])] + said
        known = before_ids[: round(len(before_ids) * turn["keeps"])] + known
    histories.append(([*said], known + turn["said"]))
    choice: JSON = {"index": 0, "token_ids": turn["said"], "message": {"content": "hello"}}
    response: JSON = {"id": "x", "choices": [choice, {"index": 1, "token_ids": [1, 2]}]}
    request: JSON = {"messages": said, "tools": TOOLS[turn["tools"]], "response_format": {"schema": TOOLS[0]}}
    if turn["where"] == "response":
        response["prompt_token_ids"] = known
    elif turn["where"] == "choice":
        choice["prompt_token_ids"] = known
        response["choices"][1]["prompt_token_ids"] = known[::-1]
    elif turn["where"] == "prompt":
        request["prompt"] = known
        response["prompt_token_ids"] = [*known]
    data = copy.deepcopy({"request": request, "original": {"input": said, "text": "t" * 300}, "response": response})
    if turn["odd"] is not None:
        where, value = turn["odd"]
        places = [path for path in paths(data) if len(path) > 1]
        *way, last = places[where % len(places)]
        parent: Any = data
        for step in way:
            parent = parent[step]
        parent[last] = copy.deepcopy(value)
    return data


def is_plain(data: JSON) -> bool:
    """Whether orjson, which reads what gateways get, could have read this."""
    try:
        return same(orjson.loads(orjson.dumps(data)), data)
    except TypeError:
        return False


class Rollout:
    """Calls of a rollout, written by three writers of whom each knows its own, in the order in which they closed."""

    def __init__(self, plan: list[JSON]) -> None:
        self.stream: list[tuple[str, bytes, tuple[str, ...]]] = []
        self.calls: dict[str, JSON] = {}
        histories: list[tuple[list, list]] = []
        known = [NOTHING, NOTHING, NOTHING]
        opened: list[tuple[int, JSON, str, EncodedCall]] = []
        for place, turn in enumerate(plan):
            call_id, writer = f"call-{place}", turn["writer"]
            self.calls[call_id] = data = call_of(turn, histories)
            if turn["forgets"]:
                known[writer] = NOTHING
            earlier: Prefixes = known[writer]
            before = copy.deepcopy(data)
            encoded = (
                encode_call(data, earlier, parsed=is_plain(data))
                if turn["version"] == LINEAR
                else EncodedCall(encode(data))
            )
            assert same(data, before)
            opened.append((place + turn["closes_after"], turn, call_id, encoded))
            for each in [each for each in opened if each[0] <= place or place == len(plan) - 1]:
                _, its_turn, its_id, its = each
                opened.remove(each)
                self.stream.append((its_id, its.payload, its.bases))
                known[its_turn["writer"]] = known[its_turn["writer"]].after(its_id, its.marks)


@given(plan=turns())
@settings(max_examples=120, deadline=None)
def test_any_rollout_comes_back_as_it_was(plan: list[JSON]):
    rollout = Rollout(plan)
    calls: dict[str, JSON] = {}
    for call_id, payload, bases in rollout.stream:
        assert set(bases) <= calls.keys()
        calls[call_id] = decode(payload, calls)
    for call_id, data in calls.items():
        assert same(data, rollout.calls[call_id])


@given(plan=turns(), parsed=st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_is_shared_is_never_changed_by_reading_on(plan: list[JSON], parsed: bool):
    rollout = Rollout(plan)
    calls: dict[str, JSON] = {}
    kept: dict[str, str] = {}
    for call_id, payload, _ in rollout.stream:
        calls[call_id] = decode(payload, calls)
        kept[call_id] = json.dumps(calls[call_id])
    assert {call_id: json.dumps(data) for call_id, data in calls.items()} == kept


@given(value=json_values, place=st.sampled_from(["messages", "tools", "other", "*", "prompt_token_ids"]))
@settings(max_examples=200, deadline=None)
def test_calls_of_any_json_come_back_as_they_were(value: Any, place: str):
    data = {"request": {place: value}, "response": value, "original": {place: [value, value, "x" * 300]}}
    writer = Writer()
    stream = [(str(turn), writer.write(str(turn), data).payload) for turn in range(3)]
    assert same(read(stream), [data] * 3)


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1: 2}, b"x", object()])
def test_what_is_not_json_is_refused_in_calls_too_even_where_it_reads_like_what_was_before(value: Any):
    writer = Writer()
    for plain in (None, [1, 2], {"1": 2}):
        writer.write(str(plain), {"request": {"messages": [plain, "x" * 300]}})
    with pytest.raises(PayloadInvalid, match=r"data\.request\.messages\[0\]"):
        writer.write("bad", {"request": {"messages": [value, "x" * 300]}})


def test_a_missing_base_is_named():
    conversation, writer = Conversation(), Writer()
    payloads = [writer.write(call["call_id"], call).payload for call in (conversation.call() for _ in range(2))]
    with pytest.raises(BaseUnknown, match=f"goes on from call {0:032x}"):
        decode(payloads[1])
    assert issubclass(BaseUnknown, PayloadRefused)


def test_a_base_that_has_less_than_was_shared_is_damage_and_never_a_shorter_event():
    conversation, writer = Conversation(), Writer()
    first, second = conversation.call(), conversation.call()
    writer.write("0", first)
    payload = writer.write("1", second).payload
    for way in (("request", "messages"), ("request", "tools"), ("response", "prompt_token_ids")):
        shorter: Any = copy.deepcopy(first)
        shorter[way[0]][way[1]] = shorter[way[0]][way[1]][:-1]
        if way[1] == "prompt_token_ids":
            shorter["response"]["choices"] = []
        with pytest.raises(PayloadRefused, match="damaged payload"):
            decode(payload, {"0": shorter})
    for nothing in ({}, {"request": None, "response": 5}, {"request": {"messages": {}, "tools": 1}}):
        with pytest.raises(PayloadRefused, match="damaged payload"):
            decode(payload, {"0": nothing})


@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_damaged_references_are_refused_or_read_but_never_crash(flips: list[tuple[int, int]]):
    conversation, writer = Conversation(tools=1), Writer()
    first, second = conversation.call(tokens=9), conversation.call(tokens=9)
    writer.write("0", first)
    payload = writer.write("1", second).payload
    inside = bytearray(zstandard.ZstdDecompressor().decompress(payload[1:]))
    for place, change in flips:
        inside[place % len(inside)] ^= change
    try:
        decode(payload[:1] + zstandard.ZstdCompressor().compress(bytes(inside)), {"0": first})
    except PayloadRefused:
        return


class TestInTheLog:
    """As rollouts are read."""

    @pytest.fixture
    async def nonce(self, run: RunLog, log: Log) -> str:
        await run.rollouts.create(NewRollout(input=None, rollout_id="a"))
        return (await log.locate("a")).nonce

    async def close(self, run: RunLog, call_id: str, encoded: EncodedCall, attempt: str = "0") -> None:
        await run.calls.open("a", attempt, call_id, "gw", admin=True)
        await run.calls.close("a", attempt, call_id, encoded.payload, bases=encoded.bases)

    async def test_a_rollout_is_read_whole_and_backwards(self, run: RunLog, nonce: str):
        conversation, writer, other = Conversation(), Writer(), Writer()
        calls = [conversation.call() for _ in range(24)]
        for place, call in enumerate(calls):
            written = [writer, other][place % 3 == 0].write(call["call_id"], call, parsed=True)
            await self.close(run, call["call_id"], EncodedCall(encode(call)) if place == 7 else written)
            await run.events.append("a", "0", "note", {"place": place})

        assert same([each.data for each in await run.events.of_attempt("a", "0")][::2], calls)
        entries = await run.events.entries("a")
        backwards = [entry async for entry in run.events.backwards("a")]
        assert backwards == entries[::-1]
        assert same([entry.data for entry in backwards], [entry.data for entry in entries[::-1]])

    async def test_the_last_entries_of_whole_events_are_read_alone(self, run: RunLog, nonce: str, redis, monkeypatch):
        for place in range(30):
            await run.events.append("a", "0", "note", {"place": place})
        asked: list[Any] = []
        plain = run.events._redis.xrevrange

        def counted(*args: Any, **more: Any) -> Any:
            asked.append(more.get("count"))
            return plain(*args, **more)

        monkeypatch.setattr(run.events._redis, "xrevrange", counted)
        async for entry in run.events.backwards("a"):
            if entry.data == {"place": 25}:
                break
        assert asked == [2, 8]

    @given(plan=turns())
    @settings(max_examples=25, deadline=None)
    def test_any_rollout_is_read_as_it_was(self, redis_server: str, plan: list[JSON]):
        async def through_redis() -> None:
            log = Log.connect(redis_server)
            try:
                name = f"linear-{random.randrange(1 << 60):x}"
                await log.runs.begin(name, RunSettings())
                run, rollout = log.run(name), Rollout(plan)
                rollout_id = (await run.rollouts.create(NewRollout(input=None))).rollout_id
                for call_id, payload, bases in rollout.stream:
                    await run.calls.open(rollout_id, "0", call_id, "gw", admin=True)
                    await run.calls.close(rollout_id, "0", call_id, payload, bases=bases)
                expected = [rollout.calls[call_id] for call_id, _, _ in rollout.stream]
                assert same([each.data for each in await run.events.of_attempt(rollout_id, "0")], expected)
                newest = [each async for each in run.events.backwards(rollout_id) if each.call_id]
                assert same([each.data for each in newest], expected[::-1])
            finally:
                await log.close()

        asyncio.run(through_redis())

    async def test_late_calls_can_be_gone_on_from_and_lost_ones_do_no_harm(self, run: RunLog, nonce: str):
        conversation, writer = Conversation(), Writer()
        first, second = conversation.call(), conversation.call()
        await run.calls.open("a", "0", "one", "gw", admin=True)
        await run.rollouts.end("a", State.FAILED)
        one = writer.write("one", first)
        assert (await run.calls.close("a", "0", "one", one.payload, bases=one.bases)).late
        two = writer.write("two", second)
        assert (await run.calls.close("a", "0", "two", two.payload, bases=two.bases)).late
        kinds = [(entry.kind, entry.call_id, entry.data) for entry in await run.events.entries("a") if entry.call_id]
        assert [kind for kind, _, _ in kinds] == ["lost", "late", "late"]
        assert same([data for _, _, data in kinds[1:]], [first, second])

    async def test_a_call_whose_base_is_not_on_record_is_refused_and_stays_open(self, run: RunLog, nonce: str):
        conversation, writer = Conversation(), Writer()
        writer.write("lost by Redis", conversation.call())
        data = conversation.call()
        encoded = writer.write("one", data)
        await run.calls.open("a", "0", "one", "gw", admin=True)
        for _ in range(2):
            with pytest.raises(BaseMissing, match="call lost by Redis"):
                await run.calls.close("a", "0", "one", encoded.payload, bases=encoded.bases)
        assert (await run.pause.state()).inflight == 1
        assert not (await run.calls.close("a", "0", "one", encode(data))).late
        assert not (await run.calls.close("a", "0", "one", encoded.payload, bases=encoded.bases)).late
        assert [each.data for each in await run.events.of_attempt("a", "0")] == [data]

    async def test_what_was_folded_anew_can_be_gone_on_from(self, run: RunLog, nonce: str):
        conversation, writer = Conversation(), Writer()
        calls = [conversation.call() for _ in range(3)]
        for call in calls:
            await self.close(run, call["call_id"], writer.write(call["call_id"], call))
            await run.rollouts.rebuild("a")
        assert same([each.data for each in await run.events.of_attempt("a", "0")], calls)

    async def test_a_call_lost_from_the_stream_is_damage_that_is_named(self, run: RunLog, nonce: str, redis):
        conversation, writer = Conversation(), Writer()
        for call in [conversation.call() for _ in range(2)]:
            await self.close(run, call["call_id"], writer.write(call["call_id"], call))
        (gone,) = [entry.entry for entry in await run.events.entries("a") if entry.call_id == f"{0:032x}"]
        await redis.xdel(keys.RunKeys(run.run).events("a"), gone)
        with pytest.raises(PayloadRefused, match=f"call {0:032x}"):
            await run.events.entries("a")
        with pytest.raises(PayloadRefused, match=f"call {0:032x}"):
            [entry async for entry in run.events.backwards("a")]


@pytest.mark.parametrize("value", [list(range(8)), "x" * 300, ["x" * 300], {"a": "x" * 300}])
def test_a_parameter_may_have_the_name_that_marks_log_probs(value: Any):
    data = {"request": {"*": value}, "response": {"choices": [{"token_ids": list(range(9))}]}}
    writer = Writer()
    stream = [(str(turn), writer.write(str(turn), data).payload) for turn in range(2)]
    assert same(read(stream), [data] * 2)
