"""What `format=triplet` makes of recorded events, whatever they look like."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.schemas import Event
from leyden.triplet import model_calls, to_triplet, triplets


def event(event_type, data, at=0.0):
    return Event(event_type=event_type, rollout_id="r", attempt_id="0", timestamp=at, data=data)


def chat(prompt, sampled, log_probs=None, **more):
    choice = {"token_ids": sampled}
    if log_probs is not None:
        choice["logprobs"] = {"content": [{"logprob": value, "token": "x"} for value in log_probs]}
    return {
        "model": "m",
        "request": {"messages": []},
        "response": {"prompt_token_ids": prompt, "choices": [choice]},
        "server": {"model": "m", "endpoint": "http://e/v1", "version": 3},
        "http_status": 200,
        "status": "ok",
        **more,
    }


def prompts(events):
    return [e.data["prompt_token_ids"] for e in events if e.event_type == "model_request"]


def test_a_chat_completion_becomes_its_ids_and_log_probs():
    assert to_triplet(chat([1, 2], [3, 4], [-0.5, -1])) == {
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3, 4],
        "response_log_probs": [-0.5, -1.0],
        "server": {"model": "m", "version": 3},
        "http_status": 200,
        "status": "ok",
    }


def test_a_completion_has_its_ids_and_log_probs_inside_the_choice():
    choice = {"prompt_token_ids": [1], "token_ids": [2], "logprobs": {"token_logprobs": [-0.25], "tokens": ["x"]}}
    triplet = to_triplet({"response": {"choices": [choice]}})
    assert (triplet["prompt_token_ids"], triplet["response_token_ids"]) == ([1], [2])
    assert triplet["response_log_probs"] == [-0.25]


def test_routed_experts_and_what_went_wrong_are_kept_where_they_exist():
    data = chat([1], [2], routed_experts="abc", delivered=False, call_id="c") | {"http_status": 500, "status": "error"}
    data["response"]["error"] = {"message": "out of memory"}
    triplet = to_triplet(data)
    assert triplet["routed_experts"] == "abc"
    assert triplet["error"] == {"message": "out of memory"}
    assert (triplet["http_status"], triplet["status"]) == (500, "error")
    assert (triplet["delivered"], triplet["call_id"]) == (False, "c")


@pytest.mark.parametrize("bad", [None, "-1", True, math.nan, math.inf, -math.inf, [], 10**400])
@pytest.mark.parametrize("shape", ["content", "token_logprobs"])
def test_one_unusable_log_prob_makes_all_null(bad, shape):
    values = [{"logprob": -1.0}, {"logprob": bad}] if shape == "content" else [-1.0, bad]
    data = {"response": {"choices": [{"token_ids": [1, 2], "logprobs": {shape: values}}]}}
    assert to_triplet(data)["response_log_probs"] is None


def test_a_log_prob_that_is_missing_makes_all_null():
    data = {"response": {"choices": [{"token_ids": [1, 2], "logprobs": {"content": [{"logprob": -1.0}, {}]}}]}}
    assert to_triplet(data)["response_log_probs"] is None


def test_a_reward_keeps_value_source_and_reason_and_other_events_pass_untouched():
    reward = event("reward", {"value": 1, "source": "s", "reason": "r", "message": "m"})
    other = event("note", {"prompt_token_ids": [1], "anything": None})
    assert [e.data for e in triplets([reward, other])] == [{"value": 1, "source": "s", "reason": "r"}, other.data]


def test_of_calls_with_the_same_prompt_the_last_stays_in_its_own_place():
    events = [event("model_request", chat([p], [n])) for n, p in enumerate([1, 2, 1, 3, 2])]
    assert [e.data["response_token_ids"] for e in triplets(events)] == [[2], [3], [4]]


def test_calls_without_usable_prompt_ids_all_stay():
    unusable = [None, [], [1, "2"], [True], "12", {"a": 1}]
    events = [event("model_request", chat(prompt, [1])) for prompt in unusable for _ in range(2)]
    assert len(triplets(events)) == len(events)


def test_an_undelivered_call_never_replaces_a_delivered_one():
    late = [event("model_request", chat([1], [n], delivered=n != 1)) for n in (0, 1)]
    assert [e.data["response_token_ids"] for e in triplets(late)] == [[0]]
    retried = [event("model_request", chat([1], [n], delivered=n == 1)) for n in (0, 1)]
    assert [e.data["response_token_ids"] for e in triplets(retried)] == [[1]]
    lost = [event("model_request", chat([1], [n], delivered=False)) for n in (0, 1)]
    assert [e.data["response_token_ids"] for e in triplets(lost)] == [[1]]


def test_a_later_event_says_whether_a_call_reached_its_agent_in_the_end():
    def told(delivered, *kinds):
        events = [event("model_request", chat([1], [2], delivered=delivered, call_id="c"))]
        events += [event(kind, {"call_id": "c"}) for kind in kinds]
        (call,) = model_calls(events)
        assert triplets(events)[0].data == call
        assert model_calls(triplets(events)) == [call]
        return call["delivered"]

    assert told(True) is True
    assert told(False) is False
    assert told(True, "undelivered") is False
    assert told(False, "undelivered", "redelivered") is True
    assert told(True, "undelivered", "redelivered") is True


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2)
junk = scalars | st.lists(scalars, max_size=2) | st.just({}) | st.just({"content": [{}, 1]})
choice = st.fixed_dictionaries({}, optional={"token_ids": junk, "prompt_token_ids": junk, "logprobs": junk})
response = st.fixed_dictionaries(
    {}, optional={"prompt_token_ids": junk, "choices": junk | st.lists(junk | choice, max_size=1), "error": junk}
)
calls = st.fixed_dictionaries(
    {}, optional={"response": junk | response, "server": junk, "delivered": junk, "call_id": junk | st.just("c")}
)


@given(st.lists(st.tuples(st.sampled_from(["model_request", "reward", "redelivered"]), calls), max_size=3))
def test_no_recorded_event_is_too_broken_to_be_read(recorded):
    events = [event(kind, data) for kind, data in recorded]
    before = [e.model_copy(deep=True) for e in events]
    for each in triplets(events):
        if each.event_type == "model_request":
            assert isinstance(each.data["prompt_token_ids"], list)
            assert isinstance(each.data["response_token_ids"], list)
    assert [repr(e) for e in events] == [repr(e) for e in before]


@given(st.lists(st.integers(0, 4), max_size=12))
def test_every_prompt_stays_once_by_order_of_its_last_call(asked):
    events = [event("model_request", chat([p], [n]), at=float(n)) for n, p in enumerate(asked)]
    last = {p: n for n, p in enumerate(asked)}
    assert prompts(triplets(events)) == [[p] for p in sorted(last, key=last.__getitem__)]
