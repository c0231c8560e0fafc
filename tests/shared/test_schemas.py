"""The objects of the API: what may be left out, what is kept, what is refused."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from leyden.schemas import (
    Model,
    NewEvent,
    NewRollout,
    PauseRequest,
    RolloutConfig,
    RolloutPatch,
    State,
    StatusPatch,
    data_id_of,
)
from leyden.variables import AGENT_VARIABLES, agent_variables


def test_what_may_be_left_out_has_the_contract_s_default():
    new = NewRollout.model_validate({"input": None, "config": None, "metadata": None})
    assert (new.is_train, new.rollout_id, new.config.timeout_seconds) == (True, None, 3600)
    assert new.metadata.model_dump() == {"batch_idx": None, "sample_idx_in_batch": None}
    assert PauseRequest().model_dump() == {"retry_after_seconds": 5, "reason": None}
    assert Model.model_validate({"model": "m", "endpoint": "http://x/v1"}).version == 0


def test_metadata_keeps_what_it_does_not_know():
    assert NewRollout.model_validate({"input": 1, "metadata": {"own": [1]}}).metadata.model_dump()["own"] == [1]


@pytest.mark.parametrize(
    ("schema", "value", "named"),
    [
        (RolloutConfig, {"timeout": 5}, "timeout"),
        (RolloutConfig, {"timeout_seconds": 0}, "timeout_seconds"),
        (RolloutConfig, {"max_attempts": 0}, "max_attempts"),
        (RolloutConfig, {"local": {"agent_clas": "a.B"}}, "agent_clas"),
        (RolloutConfig, {"local": {"agent_class": "a.B", "command": "x"}}, "are both set"),
        (RolloutConfig, {"k8s": {"template": ""}}, "template"),
        (StatusPatch, {"state": "done"}, "state"),
        (StatusPatch, {"version": 2}, "version"),
        (RolloutPatch, {"input": 1}, "input"),
        (NewRollout, {}, "input"),
        (NewRollout, {"input": 1, "rollout_id": "a/b"}, "'a/b' is not a valid name"),
        (NewRollout, {"input": 1, "rollout_id": "a:b"}, "not a valid name"),
        (NewRollout, {"input": 1, "rollout_id": "{a}"}, "not a valid name"),
        (NewRollout, {"input": 1, "rollout_id": ""}, "not a valid name"),
        (NewRollout, {"input": 1, "rollout_id": "a\n"}, "not a valid name"),
        (NewRollout, {"input": 1, "rollout_id": "a" * 201}, "not a valid name"),
        (NewEvent, {"event_type": ""}, "event_type"),
        (NewEvent, {"event_type": "x", "data": [1]}, "data"),
        (Model, {"model": "", "endpoint": "http://x"}, "model"),
        (Model, {"model": "m", "endpoint": "x:80"}, "endpoint"),
        (Model, {"model": "m", "endpoint": "http://x/v1\n"}, "endpoint"),
        (PauseRequest, {"retry_after_seconds": -1}, "retry_after_seconds"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(schema: type[BaseModel], value: dict, named: str):
    with pytest.raises(ValidationError, match=named):
        schema.model_validate(value)


def test_only_the_last_two_states_are_final():
    assert [state.terminal for state in State] == [False, False, True, True]


@pytest.mark.parametrize(
    ("given", "data_id"),
    [
        ({"data_id": "a", "instance_id": "b"}, "a"),
        ({"instance_id": 7}, "7"),
        ({"data_id": None, "instance_id": "b"}, "b"),
        ({}, ""),
        ([1], ""),
        ("data_id", ""),
        (None, ""),
    ],
)
def test_the_data_id_is_the_input_s_own(given: object, data_id: str):
    assert data_id_of(given) == data_id


@pytest.mark.parametrize(("is_train", "mode"), [(True, "train"), (False, "val")])
def test_an_agent_is_told_its_model_its_log_and_its_key(is_train: bool, mode: str):
    told = agent_variables("http://gw:9/", "r", "1", is_train=is_train, key="k")
    proxy = f"http://gw:9/proxy/rollout/r/attempt/1/mode/{mode}"
    assert tuple(told) == AGENT_VARIABLES
    assert told["AGL_OPENAI_BASE_URL"] == told["OPENAI_BASE_URL"] == f"{proxy}/openai/v1"
    assert told["AGL_EVENT_URL"] == "http://gw:9/api/rollouts/r/attempt/1/events"
    assert {told[name] for name in AGENT_VARIABLES if name.endswith("KEY")} == {"k"}
    assert told["ANTHROPIC_BASE_URL"] == f"{proxy}/anthropic"


@pytest.mark.parametrize("name", [".", "..", "a/b", "a b", "", "x" * 201])
def test_a_name_that_no_url_or_key_can_hold_is_refused(name: str):
    with pytest.raises(ValidationError, match="is not a valid name"):
        NewRollout(input=1, rollout_id=name)


@pytest.mark.parametrize(
    "endpoint", ["http://x:999999/v1", "http://:8000/v1", "http://[::1/v1", "http://x/v1?q=1", "http://x/v1#f", "x/v1"]
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str):
    with pytest.raises(ValidationError, match="endpoint"):
        Model(model="m", endpoint=endpoint)
