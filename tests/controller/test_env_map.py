"""What agents are told of their input."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_controller.local.env_map import variables_of
from leyden_controller.runner import StartRefused

KEYS = st.text(st.characters(exclude_characters=".\0", exclude_categories=["Cs"]), min_size=1, max_size=5)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def input_and_place(draw: st.DrawFn) -> tuple[object, list[str], object]:
    """An input, the path to a place in it, and what stands there."""
    whole = draw(JSON)
    path: list[str] = []
    here = whole
    while isinstance(here, dict | list) and here and draw(st.booleans()):
        if isinstance(here, dict):
            key = draw(st.sampled_from(sorted(here)))
            path.append(key)
            here = here[key]
        else:
            index = draw(st.integers(0, len(here) - 1))
            path.append(str(index))
            here = here[index]
    return whole, path, here


@given(case=input_and_place())
def test_a_path_gives_a_string_as_it_is_and_anything_else_as_json(case):
    whole, path, here = case
    value = variables_of({"V": ".".join(["input", *path])}, whole)["V"]

    if isinstance(here, str):
        assert value == here
    else:
        assert json.loads(value) == here


@given(case=input_and_place(), beyond=st.sampled_from(["no-such-key", "-1", "99", "١", ""]))
def test_a_path_that_is_not_in_the_input_is_refused_by_name(case, beyond):
    whole, path, here = case
    if isinstance(here, dict) and beyond in here:
        return
    source = ".".join(["input", *path, beyond])

    with pytest.raises(StartRefused) as refused:
        variables_of({"V": source}, whole)

    assert "env_map.V" in str(refused.value)
    assert repr(source) in str(refused.value)


@given(literal=TEXT.filter(lambda text: text.split(".")[0] != "input"))
def test_what_is_not_a_path_is_a_literal(literal):
    assert variables_of({"V": literal}, {"a": 1}) == {"V": literal}


@pytest.mark.parametrize("literal", ["inputs", "input_", "Input", "", " input", "the input.a"])
def test_a_literal_may_look_like_a_path(literal):
    assert variables_of({"V": literal}, {"a": 1}) == {"V": literal}


@pytest.mark.parametrize(
    ("env_map", "whole"),
    [
        ({"": "x"}, None),
        ({"A=B": "x"}, None),
        ({"A\0": "x"}, None),
        ({"A": "x\0"}, None),
        ({"A": "input"}, "a\0b"),
        ({"A": "input"}, "\ud800"),
        ({"A": "input"}, ["\udfff"]),
    ],
)
def test_what_no_environment_can_hold_is_refused(env_map, whole):
    with pytest.raises(StartRefused, match="env_map"):
        variables_of(env_map, whole)
