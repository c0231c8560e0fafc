"""The last reward event of an attempt counts, if it is a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.schemas import Event
from leyden_trainer.rewards import Origin, Reward, reward_of


def events(*values):
    return [
        Event(event_type="reward", rollout_id="r", attempt_id="0", timestamp=float(-n), data={"value": value})
        for n, value in enumerate(values)
    ]


@given(st.lists(st.floats(-1e30, 1e30) | st.integers(-(10**30), 10**30), min_size=1))
def test_the_last_reward_in_the_logs_order_counts(values):
    assert reward_of(events(*values), fill=0.0) == Reward(float(values[-1]), Origin.REPORTED)


def test_a_missing_reward_is_filled_and_says_so():
    other = Event(event_type="note", rollout_id="r", attempt_id="0", timestamp=0.0, data={"value": 1.0})
    for given_events in ([], [other]):
        reward = reward_of(given_events, fill=-1.0)
        assert (reward.value, reward.origin, reward.filled) == (-1.0, Origin.MISSING, True)


@pytest.mark.parametrize("bad", [True, False, None, "1", math.nan, math.inf, -math.inf, [1], {}, 10**400, 1e39])
def test_what_is_not_a_number_is_no_reward_even_after_one_that_is(bad):
    reward = reward_of(events(1.0, bad), fill=0.5)
    assert (reward.value, reward.origin, reward.filled) == (0.5, Origin.INVALID, True)
    assert repr(reward.found) == repr(bad)


def test_a_reward_without_a_value_is_invalid():
    bare = Event(event_type="reward", rollout_id="r", attempt_id="0", timestamp=0.0, data={})
    assert reward_of([bare], fill=0.0).origin is Origin.INVALID
