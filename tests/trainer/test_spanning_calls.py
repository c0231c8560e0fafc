"""Calls that an update fell into: the weights they ended under count for how stale a row is."""

from leyden.schemas import Event
from leyden_trainer.ids import steps_of
from leyden_trainer.samples import Aggregation, Level, aggregate

LIMITS = Aggregation(Level.TRAJECTORY, max_prompt_length=100, max_response_length=100)


def event(prompt: list[int], sampled: list[int], version: str, **more: object) -> Event:
    """A model call with one log prob for each sampled id."""
    content = [{"token": "x", "logprob": -0.5} for _ in sampled]
    response = {"prompt_token_ids": prompt, "choices": [{"token_ids": sampled, "logprobs": {"content": content}}]}
    data = {"response": response, "server": {"model": "m", "version": version}, "http_status": 200, **more}
    return Event(event_type="model_request", rollout_id="a", attempt_id="0", timestamp=0, data=data)


def test_a_row_knows_the_weights_that_came_while_its_calls_were_sampled():
    (row,) = aggregate(
        [
            event([1, 2], [3], "b1:4", model_version_at_end="b1:4"),
            event([1, 2, 3, 9], [5], "b1:4", model_version_at_end="b1:6"),
            event([1, 2, 3, 9, 5], [6], "b1:6", model_version_at_end=None),
            event([1, 2, 3, 9, 5, 6], [7], "b1:6"),
        ],
        LIMITS,
    ).rows

    assert (row.versions, row.later_versions, row.calls) == (("b1:4", "b1:4", "b1:6", "b1:6"), ("b1:6",), 4)
    assert steps_of((*row.versions, *row.later_versions), ["b1"]) == (4, 6)


def test_a_single_call_that_spanned_an_update_is_as_old_as_its_beginning_and_as_new_as_its_end():
    (row,) = aggregate([event([1], [2], "b1:4", model_version_at_end="b1:5")], LIMITS).rows

    assert steps_of((*row.versions, *row.later_versions), ["b1"]) == (4, 5)
