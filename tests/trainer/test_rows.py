import json
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_trainer.dataset import RowInvalid, Rows, data_source_of
from leyden_trainer.row_sources import RowsInvalid, load_rows

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(values=st.lists(JSON))
def test_rows_are_what_was_given(values):
    rows = Rows(values)

    assert list(rows) == values
    assert len(rows) == len(values)


def test_rows_of_numpy_become_plain():
    assert list(Rows([{"x": numpy.array([1, 2])}])) == [{"x": [1, 2]}]


def test_a_row_that_is_not_json_is_named():
    with pytest.raises(RowInvalid, match="row 1 is not JSON"):
        Rows([1, {"x": object()}])


def test_equal_rows_are_encoded_alike_whatever_the_order_of_their_keys():
    assert Rows([{"a": 1, "b": 2}]).encoded == Rows([{"b": 2, "a": 1}]).encoded


@pytest.mark.parametrize(
    ("row", "source"), [({"data_source": "gsm8k"}, "gsm8k"), ({"data_source": 3}, "rollouts"), ("text", "rollouts")]
)
def test_a_row_may_name_its_data_source(row, source):
    assert data_source_of(row) == source


def test_rows_come_from_a_jsonl_file(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"q": 1}\n\n[2]\n')

    assert list(load_rows(str(file), "data.train_rows")) == [{"q": 1}, [2]]


def test_rows_come_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "leyden_test_tasks.py").write_text(f"def rows():\n    return {json.dumps([{'q': 1}])}\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert load_rows("leyden_test_tasks:rows", "data.train_rows") == [{"q": 1}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "data.val_rows is not set: give a JSONL file, or pkg.module:function"),
        ("nowhere.jsonl", "data.val_rows: nowhere.jsonl can't be read"),
        ("leyden_no_such_module:rows", "data.val_rows: leyden_no_such_module:rows can't be imported"),
        ("json:rows", "data.val_rows: json:rows can't be imported"),
    ],
)
def test_rows_that_can_not_be_had_say_where_they_were_looked_for(source, message):
    with pytest.raises(RowsInvalid) as raised:
        load_rows(source, "data.val_rows")
    assert message in str(raised.value)


def test_a_broken_line_is_named(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('1\n{"q": \n')

    with pytest.raises(RowsInvalid, match=r"rows\.jsonl, line 2"):
        load_rows(str(file), "data.train_rows")
