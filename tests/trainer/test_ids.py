"""Names made from what a thing is: read back whole, and equal only for the same thing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from leyden.schemas import Name
from leyden_trainer.ids import (
    IdInvalid,
    RowKey,
    Slot,
    Version,
    branch_id,
    draw_of,
    parse_rollout_id,
    rollout_id,
    steps_of,
    uid,
)

names = st.text("abcXYZ019._~@=+-", min_size=1, max_size=120)
branches = st.text("abcdef0123456789", min_size=1, max_size=10)
counts = st.integers(0, 10**9)
slots = st.builds(Slot, names, branches, st.none() | counts, counts, counts)


@given(slots, counts)
def test_a_rollout_id_says_which_rollout_it_is(slot, tried):
    name = rollout_id(slot, tried)
    assert parse_rollout_id(name) == (slot, tried)
    assert TypeAdapter(Name).validate_python(name) == name


@given(st.sampled_from(["sort", "sort-2", "a.b"]), branches, st.none() | counts, counts, counts, counts)
def test_a_rollout_of_a_lower_case_run_is_a_name_that_kubernetes_takes(run, branch, val_step, draw, repeat, tried):
    name = rollout_id(Slot(run, branch, val_step, draw, repeat), tried)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", label) for label in name.split("."))


def test_ids_are_short_to_read():
    assert rollout_id(Slot("sort", "3f2a91c0", None, 17, 2), 0) == "sort.3f2a91c0.t17.2.0"
    assert rollout_id(Slot("sort", "3f2a91c0", 40, 17, 0), 1) == "sort.3f2a91c0.v40-17.0.1"


@pytest.mark.parametrize(
    "name",
    ["x", "run.b.t1.2", "run.b.t1.2.x", "run.B.t1.2.3", "run.b.v1.2.3", "run.b.t01.2.3", ".b.t1.2.3", "r:r.b.t1.2.3"],
)
def test_other_ids_are_refused_by_name(name):
    with pytest.raises(IdInvalid, match=re.escape(name.split(".b.")[0] or name)):
        parse_rollout_id(name)


@pytest.mark.parametrize(
    "parts",
    [
        ("", "b", None, 0, 0),
        ("a b", "b", None, 0, 0),
        ("a:b", "b", None, 0, 0),
        ("r" * 121, "b", None, 0, 0),
        ("r", "B", None, 0, 0),
        ("r", "", None, 0, 0),
        ("r", "b", -1, 0, 0),
        ("r", "b", None, -1, 0),
    ],
)
def test_a_slot_that_can_not_be_named_is_refused(parts):
    with pytest.raises(IdInvalid):
        Slot(*parts)


@given(counts)
def test_a_uid_has_no_underscore_and_says_its_draw(draw):
    assert "_" not in uid(draw)
    assert draw_of(uid(draw)) == draw


@given(st.builds(RowKey, counts.map(uid) | st.just("padabc"), counts, counts))
def test_a_row_key_is_read_back(key):
    assert RowKey.parse(str(key)) == key


@pytest.mark.parametrize("key", ["d1", "d1_2", "_1_2", "d1_a_2", "d1_1_2_3", "d1_1_-2"])
def test_what_is_no_row_key_is_refused(key):
    with pytest.raises(IdInvalid, match=key):
        RowKey.parse(key)


def test_a_padding_row_has_no_draw():
    with pytest.raises(IdInvalid, match="padabc"):
        draw_of("padabc")


@given(st.lists(st.tuples(names, st.none() | branches, counts, names), min_size=2, max_size=2, unique=True))
def test_a_branch_is_named_by_where_it_began_and_its_config(begun):
    first, second = (branch_id(*each) for each in begun)
    assert first != second
    assert first == branch_id(*begun[0])
    Slot("r", first, None, 0, 0)


@given(branches, counts)
def test_a_version_is_read_back(branch, step):
    assert Version.parse(str(Version(branch, step))) == Version(branch, step)


@pytest.mark.parametrize("value", [None, 3, "", ":1", "b:", "b:x", "b", True])
def test_what_is_no_version_is_none(value):
    assert Version.parse(value) is None


def test_steps_are_known_only_if_all_are():
    assert steps_of(["a:3", "b:1", "a:2"], ["a", "b"]) == (1, 3)
    assert steps_of(["a:3", "b:1"], ["a"]) is None
    assert steps_of(["a:3", 0], ["a"]) is None
    assert steps_of([], ["a"]) is None
