from typing import Any

from leyden.log import StepEntry
from leyden_trainer.branches import BRANCH, CHECKPOINT, branch_record, choose_branches, digest_with_rows
from leyden_trainer.resume import CheckpointState, Resume

BEGINNING = Resume()


def began(branches: tuple[str, ...], resume: Resume, digest: str = "same") -> StepEntry:
    return entry(BRANCH, branch_record(branches, resume, digest))


def saved(branch: str, step: int) -> StepEntry:
    return entry(CHECKPOINT, {"branch": branch, "step": step})


def entry(kind: str, data: dict[str, Any]) -> StepEntry:
    return StepEntry("1-0", kind, "id", 1, data)


def at(step: int, *branches: str) -> Resume:
    return Resume(step=step, state=CheckpointState(run="r", step=step, drawn=2 * step, branches=branches))


def test_a_run_begins_with_a_branch_that_its_name_and_configuration_give():
    (branch,) = choose_branches("r", BEGINNING, [], "same")

    assert choose_branches("r", BEGINNING, [], "same") == (branch,)
    assert choose_branches("r", BEGINNING, [], "other") != (branch,)


def test_dying_before_the_first_checkpoint_goes_on_with_the_branch():
    branches = choose_branches("r", BEGINNING, [], "same")

    assert choose_branches("r", BEGINNING, [began(branches, BEGINNING)], "same") == branches


def test_resuming_from_the_newest_checkpoint_goes_on_with_the_branch():
    entries = [began(("a",), BEGINNING), saved("a", 2), saved("a", 4)]

    assert choose_branches("r", at(4, "a"), entries, "same") == ("a",)


def test_a_checkpoint_that_was_committed_and_not_put_on_record_is_the_newest():
    assert choose_branches("r", at(4, "a"), [began(("a",), BEGINNING), saved("a", 2)], "same") == ("a",)


def test_resuming_from_an_older_checkpoint_is_a_new_branch():
    branches = choose_branches("r", at(2, "a"), [began(("a",), BEGINNING), saved("a", 2), saved("a", 4)], "same")

    assert branches[0] != "a"
    assert branches[1:] == ("a",)


def test_beginning_anew_after_checkpoints_is_a_new_branch():
    (branch,) = choose_branches("r", BEGINNING, [began(("a",), BEGINNING), saved("a", 2)], "same")

    assert branch != "a"


def test_another_configuration_is_a_new_branch():
    branches = choose_branches("r", at(4, "a"), [began(("a",), BEGINNING), saved("a", 4)], "other")

    assert branches[0] != "a"
    assert branches[1:] == ("a",)


def test_a_new_branch_that_died_before_its_first_checkpoint_goes_on():
    entries = [began(("a",), BEGINNING), saved("a", 2), saved("a", 4)]
    branches = choose_branches("r", at(2, "a"), entries, "same")
    entries.append(began(branches, at(2, "a")))

    assert choose_branches("r", at(2, "a"), entries, "same") == branches


def test_going_back_twice_to_the_same_checkpoint_gives_two_branches():
    entries = [began(("a",), BEGINNING), saved("a", 2), saved("a", 4)]
    first = choose_branches("r", at(2, "a"), entries, "same")
    entries += [began(first, at(2, "a")), saved(first[0], 4)]
    second = choose_branches("r", at(2, "a"), entries, "same")

    assert len({"a", first[0], second[0]}) == 3


def test_a_branch_that_the_user_insists_on_is_taken():
    assert choose_branches("r", at(2, "a"), [began(("a",), BEGINNING), saved("a", 4)], "x", "mine") == ("mine", "a")


def test_data_is_part_of_what_makes_a_branch():
    assert digest_with_rows("c", [b"12", b"3"]) != digest_with_rows("c", [b"1", b"23"])
    assert digest_with_rows("c", [b"12"]) == digest_with_rows("c", [b"12"])
