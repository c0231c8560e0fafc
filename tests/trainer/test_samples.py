"""What becomes of recorded calls: every sampled token once, in its own context, with its own log prob."""

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.schemas import Event
from leyden.triplet import triplets
from leyden_trainer.calls import Reason
from leyden_trainer.samples import Aggregation, EventsMixed, Level, aggregate

LONG = 10_000
TRAJECTORY = Aggregation(Level.TRAJECTORY, LONG, LONG)
TRANSITION = Aggregation(Level.TRANSITION, LONG, LONG)


def request(prompt, sampled, log_probs=(), *, attempt="0", version=0, **more):
    logprobs = {"content": [{"logprob": value} for value in log_probs]} if log_probs is not None else None
    data = {
        "response": {"prompt_token_ids": prompt, "choices": [{"token_ids": sampled, "logprobs": logprobs}]},
        "server": {"model": "m", "version": version},
        "http_status": 200,
        "status": "ok",
        "delivered": True,
        **more,
    }
    return Event(event_type="model_request", rollout_id="r", attempt_id=attempt, timestamp=0.0, data=data)


def call(prompt, sampled, **more):
    return request(list(prompt), list(sampled), [-float(token) for token in sampled], **more)


# The contract's rules, one by one.


def test_calls_that_go_on_from_one_another_become_one_row_with_context_between():
    events = [
        call([1, 2], [3, 4], version=1),
        call([1, 2, 3, 4, 50, 51], [6], version=2),
        call([1, 2, 3, 4, 50, 51, 6], [7]),
    ]
    (row,) = aggregate(events, TRAJECTORY).rows
    assert row.prompt_ids == (1, 2)
    assert row.response_ids == (3, 4, 50, 51, 6, 7)
    assert row.response_mask == (1, 1, 0, 0, 1, 1)
    assert row.log_probs == (-3.0, -4.0, 0.0, 0.0, -6.0, -7.0)
    assert (row.calls, row.versions, row.first_call) == (3, (1, 2, 0), 0)


@pytest.mark.parametrize("prompt", [[1, 2, 3, 9], [1, 2, 3], [9], [1, 2, 9, 4, 5]])
def test_a_prompt_that_does_not_start_with_all_before_it_starts_a_new_row(prompt):
    samples = aggregate([call([1, 2], [3, 4]), call(prompt, [7])], TRAJECTORY)
    assert [row.prompt_ids for row in samples.rows] == [(1, 2), tuple(prompt)]
    assert samples.breaks == 1


def test_as_transitions_each_call_is_a_row():
    samples = aggregate([call([1], [2]), call([1, 2, 3], [4])], TRANSITION)
    assert [(row.prompt_ids, row.response_ids, row.response_mask) for row in samples.rows] == [
        ((1,), (2,), (1,)),
        ((1, 2, 3), (4,), (1,)),
    ]
    assert samples.breaks == 0


def test_a_first_prompt_over_the_limit_drops_its_whole_row_and_says_so():
    limits = replace(TRAJECTORY, max_prompt_length=2)
    samples = aggregate([call([1, 2, 3], [4]), call([1, 2, 3, 4], [5, 6]), call([7], [8])], limits)
    assert [row.prompt_ids for row in samples.rows] == [(7,)]
    (dropped,) = samples.dropped
    assert (dropped.reason, dropped.call, dropped.calls, dropped.tokens) == (Reason.PROMPT_TOO_LONG, 0, 2, 3)
    assert "3 tokens, the limit is 2" in dropped.detail


def test_a_response_over_the_limit_is_cut_and_ends_with_a_sampled_token():
    events = [call([1], [2, 3], version=5), call([1, 2, 3, 40, 41], [5, 6], version=6)]
    by_limit = {n: aggregate(events, replace(TRAJECTORY, max_response_length=n)).rows[0] for n in (6, 5, 4, 3, 2, 1)}
    assert {n: row.response_ids for n, row in by_limit.items()} == {
        6: (2, 3, 40, 41, 5, 6),
        5: (2, 3, 40, 41, 5),
        4: (2, 3),
        3: (2, 3),
        2: (2, 3),
        1: (2,),
    }
    assert [row.cut_tokens for row in by_limit.values()] == [0, 1, 2, 2, 2, 3]
    assert [row.versions for row in by_limit.values()] == [(5, 6), (5, 6), (5,), (5,), (5,), (5,)]


def test_the_total_length_leaves_the_response_what_the_prompt_did_not_take():
    limits = replace(TRAJECTORY, max_total_length=4)
    samples = aggregate([call([1, 2], [3, 4, 5]), call([6, 7, 8, 9], [10]), call([11] * 5, [12])], limits)
    assert [row.response_ids for row in samples.rows] == [(3, 4)]
    assert [dropped.reason for dropped in samples.dropped] == [Reason.CUT_AWAY, Reason.CUT_AWAY]


def test_of_calls_with_the_same_prompt_only_the_last_is_trained_on():
    samples = aggregate([call([1], [2]), call([1], [3]), call([1, 3, 4], [5])], TRAJECTORY)
    assert [row.response_ids for row in samples.rows] == [(3, 4, 5)]
    assert samples.dropped_calls() == {Reason.SUPERSEDED: 1}


def test_what_an_unusable_call_sampled_is_context_for_the_next():
    events = [call([1], [2]), request([1, 2, 3], [4], None), call([1, 2, 3, 4, 5], [6])]
    (row,) = aggregate(events, TRAJECTORY).rows
    assert (row.response_ids, row.response_mask) == ((2, 3, 4, 5, 6), (1, 0, 0, 0, 1))


def test_an_answer_that_a_retry_was_given_from_the_record_is_trained_on():
    events = [
        call([1], [2], delivered=False, call_id="a"),
        Event(event_type="undelivered", rollout_id="r", attempt_id="0", timestamp=0.0, data={"call_id": "a"}),
        Event(event_type="redelivered", rollout_id="r", attempt_id="0", timestamp=0.0, data={"call_id": "a"}),
        call([1, 2, 3], [4]),
    ]
    (row,) = aggregate(events, TRAJECTORY).rows
    assert (row.response_ids, row.response_mask) == ((2, 3, 4), (1, 0, 1))
    assert aggregate(events[:2], TRAJECTORY).dropped_calls() == {Reason.UNDELIVERED: 1}


def test_an_answer_that_was_lost_on_its_way_is_not_trained_on():
    lost = Event(event_type="undelivered", rollout_id="r", attempt_id="0", timestamp=0.0, data={"call_id": "a"})
    events = [call([1], [2], call_id="a"), lost, call([1], [3], call_id="b"), call([1, 3], [4])]
    (row,) = aggregate(events, TRAJECTORY).rows
    assert row.response_ids == (3, 4)


def test_routed_experts_are_those_of_the_last_call_and_required_where_asked_for():
    events = [call([1], [2], routed_experts="a"), call([1, 2], [3], routed_experts="b"), call([9], [8])]
    required = replace(TRAJECTORY, routed_experts_required=True)
    assert [row.routed_experts for row in aggregate(events, required).rows] == ["b"]
    assert aggregate(events, required).dropped_calls() == {Reason.NO_ROUTED_EXPERTS: 1}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (request([1], [2], [-1.0], status="error"), Reason.ERROR),
        (request([1], [2], [-1.0], http_status=500), Reason.ERROR),
        (request([1], [2], [-1.0], delivered=False), Reason.UNDELIVERED),
        (request([1], [2], [-1.0], late=True), Reason.LATE),
        (request(None, [2], [-1.0]), Reason.NO_PROMPT_IDS),
        (request([], [2], [-1.0]), Reason.NO_PROMPT_IDS),
        (request([1], None, [-1.0]), Reason.NO_SAMPLED_IDS),
        (request([1], [], []), Reason.NO_SAMPLED_IDS),
        (request([1, None], [2], [-1.0]), Reason.BAD_IDS),
        (request([1], [True], [-1.0]), Reason.BAD_IDS),
        (request([1], [-2], [-1.0]), Reason.BAD_IDS),
        (request([1], [2**31], [-1.0]), Reason.BAD_IDS),
        (request([1], [2], None), Reason.NO_LOG_PROBS),
        (request([1], [2], [math.nan]), Reason.NO_LOG_PROBS),
        (request([1], [2], [None]), Reason.NO_LOG_PROBS),
        (request([1], [2, 3], [-1.0]), Reason.LENGTHS_DIFFER),
        (request([1], [2], [-1.0, -1.0]), Reason.LENGTHS_DIFFER),
    ],
)
def test_a_broken_call_never_becomes_a_row_and_its_reason_is_counted(event, reason):
    for aggregation in (TRAJECTORY, TRANSITION):
        for given_as in ([event], triplets([event])):
            samples = aggregate(given_as, aggregation)
            assert samples.rows == ()
            assert samples.dropped_calls() == {reason: 1}


def test_log_probs_are_not_needed_where_nothing_is_trained():
    events = [request([1], [2, 3], None), request([1, 2, 3], [4], [-1.0])]
    (row,) = aggregate(events, TRAJECTORY, log_probs_required=False).rows
    assert (row.response_ids, row.log_probs) == ((2, 3, 4), None)


def test_events_of_two_attempts_are_refused():
    with pytest.raises(EventsMixed, match="'1'"):
        aggregate([call([1], [2]), call([1], [2], attempt="1")], TRAJECTORY)


def test_no_events_make_no_rows():
    assert aggregate([], TRAJECTORY).rows == ()


# The same for whatever an agent does. Every sampled id is unique, so a token says which call it came from.


@dataclass(frozen=True)
class Told:
    """A call as generated: what it recorded, and whether it may be trained on."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    fault: str | None

    def event(self):
        prompt, sampled = list(self.prompt), list(self.sampled)
        log_probs = [-token / 7 for token in sampled]
        match self.fault:
            case "error":
                return request([], [], None, http_status=500, status="error")
            case "undelivered":
                return request(prompt, sampled, log_probs, delivered=False)
            case "no log probs":
                return request(prompt, sampled, None)
            case "one log prob too few":
                return request(prompt, sampled, log_probs[1:])
            case "not a number":
                return request(prompt, sampled, [*log_probs[1:], math.inf])
            case "null ids":
                return request(None, None, log_probs)
        return request(prompt, sampled, log_probs)


FAULTS = ["error", "undelivered", "no log probs", "one log prob too few", "not a number", "null ids"]


@st.composite
def attempts(draw):
    """Calls that continue any earlier one, begin anew or repeat a prompt, with faults and retries, in any order."""
    fresh = iter(range(1, LONG))

    def new(least, most):
        return tuple(next(fresh) for _ in range(draw(st.integers(least, most))))

    told = []
    for _ in range(draw(st.integers(0, 7))):
        how = draw(st.sampled_from(["go on", "go on", "go on", "branch", "begin", "again"])) if told else "begin"
        base = None if how == "begin" else told[-1] if how == "go on" else draw(st.sampled_from(told))
        if base is None:
            prompt = new(1, 3)
        elif how == "again":
            prompt = base.prompt
        else:
            prompt = base.prompt + base.sampled + new(0, 2)
        told.append(Told(prompt, new(1, 3), draw(st.none() | st.sampled_from(FAULTS))))
    return draw(st.permutations(told)) if draw(st.integers(0, 4)) == 0 else told


def expected(told):
    """The calls to be trained on, worked out the slow way: received, the last of its prompt, and whole."""
    received = [t for t in told if t.fault not in ("error", "undelivered")]
    seen = [t.prompt if t.fault != "null ids" else None for t in received]
    last = [t for n, t in enumerate(received) if seen[n] is None or seen[n] not in seen[n + 1 :]]
    return [t for t in last if t.fault is None]


aggregations = st.builds(
    Aggregation,
    level=st.sampled_from(Level),
    max_prompt_length=st.sampled_from([2, 4, LONG]),
    max_response_length=st.sampled_from([1, 3, 5, LONG]),
    max_total_length=st.sampled_from([None, 4, 6]),
)


@given(attempts(), aggregations)
def test_every_sampled_token_is_trained_once_or_accounted_for(told, aggregation):
    usable = expected(told)
    samples = aggregate([t.event() for t in told], aggregation)

    trained = [
        token for row in samples.rows for token, mask in zip(row.response_ids, row.response_mask, strict=True) if mask
    ]
    assert len(trained) == len(set(trained))
    assert set(trained) <= {token for t in usable for token in t.sampled}
    left_out = sum(d.tokens for d in samples.dropped if d.reason in (Reason.PROMPT_TOO_LONG, Reason.CUT_AWAY))
    assert len(trained) + samples.cut_tokens + left_out == sum(len(t.sampled) for t in usable)
    if aggregation.max_prompt_length == aggregation.max_response_length == LONG and not aggregation.max_total_length:
        assert len(trained) == sum(len(t.sampled) for t in usable)
    kept = sum(row.calls for row in samples.rows)
    assert samples.calls == len(told)
    assert kept + sum(samples.dropped_calls().values()) <= len(told)


@given(attempts(), aggregations)
def test_every_trained_token_stands_in_the_context_in_which_it_was_sampled(told, aggregation):
    sampled_in = {token: (t, n) for t in told for n, token in enumerate(t.sampled)}
    for row in aggregate([t.event() for t in told], aggregation).rows:
        assert row.log_probs is not None
        assert 1 <= len(row.prompt_ids) <= aggregation.max_prompt_length
        assert 1 <= len(row.response_ids) <= aggregation.max_response_length
        assert len(row.response_ids) == len(row.response_mask) == len(row.log_probs)
        assert row.response_mask[-1] == 1
        if aggregation.max_total_length:
            assert len(row.prompt_ids) + len(row.response_ids) <= aggregation.max_total_length
        sequence = row.prompt_ids + row.response_ids
        for place, (token, mask, log_prob) in enumerate(
            zip(row.response_ids, row.response_mask, row.log_probs, strict=True), len(row.prompt_ids)
        ):
            if mask:
                told_by, n = sampled_in[token]
                assert sequence[: place + 1] == told_by.prompt + told_by.sampled[: n + 1]
                assert log_prob == -token / 7
            else:
                assert log_prob == 0.0


@given(attempts())
def test_rows_break_exactly_where_a_prompt_does_not_go_on(told):
    usable = expected(told)
    starts = [
        t.prompt
        for before, t in zip([None, *usable], usable, strict=False)
        if before is None or t.prompt[: len(before.prompt + before.sampled)] != before.prompt + before.sampled
    ]
    samples = aggregate([t.event() for t in told], TRAJECTORY)
    assert [row.prompt_ids for row in samples.rows] == starts
    assert samples.breaks == max(len(starts) - 1, 0)


@given(attempts(), aggregations)
def test_triplets_make_the_same_rows_as_whole_events(told, aggregation):
    events = [t.event() for t in told]
    of_triplets, of_events = (aggregate(kind, aggregation).rows for kind in (triplets(events), events))
    # Superseded calls are gone from triplets, so only the count of calls before a row differs.
    assert [replace(row, first_call=0) for row in of_triplets] == [replace(row, first_call=0) for row in of_events]


@given(attempts(), aggregations, st.data())
def test_an_event_recorded_twice_changes_no_row(told, aggregation, data):
    events = [t.event() for t in told]
    twice = data.draw(st.lists(st.integers(0, len(events) - 1), max_size=3)) if events else []
    doubled = [event for n, event in enumerate(events) for _ in range(1 + (n in twice))]
    assert [(row.prompt_ids, row.response_ids, row.response_mask) for row in aggregate(doubled, aggregation).rows] == [
        (row.prompt_ids, row.response_ids, row.response_mask) for row in aggregate(events, aggregation).rows
    ]
