from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leyden.log import RunSettings
from leyden_gateway.proxy.sampling import NEUTRAL, REFUSED, Mode, apply_rules

wishes = st.dictionaries(
    st.sampled_from(["temperature", "max_tokens", "stop", "seed", *NEUTRAL, *REFUSED]), st.integers(0, 5)
)


@given(wishes=wishes, temperature=st.floats(0, 2))
def test_in_train_mode_nothing_but_the_runs_temperature_shapes_the_distribution(wishes, temperature):
    body = {"model": "agents", **wishes}
    asked = apply_rules(body, RunSettings(train_temperature=temperature), Mode.TRAIN, "ours")

    assert body["temperature"] == temperature
    assert body["model"] == "ours"
    assert {name: body[name] for name in NEUTRAL} == NEUTRAL
    assert not set(REFUSED) & set(body)
    # What was asked and what was sent, together, give the request back.
    assert {name: asked.get(name, body.get(name)) for name in wishes} == wishes
    assert asked["model"] == "agents"


@given(wishes=wishes)
def test_in_val_mode_only_the_temperature_is_the_runs(wishes):
    body = dict(wishes)
    asked = apply_rules(body, RunSettings(val_temperature=0.25), Mode.VAL, "ours")

    assert body == wishes | {"model": "ours", "temperature": 0.25}
    assert asked == {name: value for name, value in wishes.items() if name == "temperature"}


def test_what_was_asked_for_and_granted_is_not_noted():
    body = {"model": "ours", "temperature": 1.0, "top_p": 1.0}

    assert apply_rules(body, RunSettings(), Mode.TRAIN, "ours") == {}
