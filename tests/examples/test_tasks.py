"""Task sets are deterministic, and what is held out is never trained on."""

import json

import pytest
from examples.two_tries.tasks import TASK_SETS, digits
from examples.two_tries.verifiers import VERIFIERS


@pytest.mark.parametrize("name", sorted(TASK_SETS))
def test_the_same_seed_gives_the_same_rows_and_none_is_in_both_parts(name):
    make = TASK_SETS[name]
    tasks, again, other = (make(train=40, held_out=16, seed=seed) for seed in (3, 3, 4))

    assert tasks == again
    assert tasks != other
    assert (len(tasks.train), len(tasks.held_out)) == (40, 16)
    questions = [row["question"] for row in tasks.train + tasks.held_out]
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("name", sorted(TASK_SETS))
def test_rows_survive_json_and_name_their_verifier(name, tmp_path):
    tasks = TASK_SETS[name](train=4, held_out=4, seed=1)
    tasks.write(tmp_path)

    for part, rows in (("train", tasks.train), ("held_out", tasks.held_out)):
        assert [json.loads(line) for line in (tmp_path / f"{part}.jsonl").open()] == rows
    assert all(row["verifier"] in VERIFIERS and row["data_id"] for row in tasks.train)


def test_the_right_answer_of_a_sum_is_right():
    tasks = TASK_SETS["chain_sums"](train=50, held_out=8, seed=1)
    assert all(VERIFIERS[row["verifier"]](row, row["answer"]).right for row in tasks.train)


def test_asking_for_more_rows_than_there_are_questions_says_how_many_there_are():
    with pytest.raises(ValueError, match="there are 155 different questions"):
        TASK_SETS["chain_sums"](train=500, held_out=16, seed=1)
    assert len(digits(train=500, held_out=16, seed=1).train) == 500
