"""The verifiers that agents import are as strict as the ones they stand for."""

import pytest
from examples.two_tries.verifiers import VERIFIERS, chain_sum, digits, final_answer
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.integers(-9999, 9999)
AROUND = st.text(st.sampled_from("The answer is =-+.,0123456789 \nNaEe"), max_size=12)


@pytest.fixture(scope="module")
def reasoning_gym_score():
    """reasoning-gym's own scorer of its sums."""
    gym = pytest.importorskip("reasoning_gym.arithmetic.chain_sum")
    return gym.ChainSumDataset(gym.ChainSumConfig(seed=1)).score_answer


@given(wanted=NUMBERS, number=NUMBERS, before=AROUND, after=AROUND, near=st.booleans())
def test_a_sum_is_scored_as_reasoning_gym_scores_it(reasoning_gym_score, wanted, number, before, after, near):
    answer = f"{before}{wanted if near else number}{after}"
    task = {"answer": str(wanted)}

    assert chain_sum(task, answer).score == pytest.approx(reasoning_gym_score(final_answer(answer), task))


@pytest.mark.parametrize("answer", ["7", " 7\n", "+7", "07", "7.0", "3 + 4 = 7", "3 + 4 = 7.\n"])
def test_the_number_alone_is_right_however_it_is_written(answer):
    assert chain_sum({"answer": "7"}, answer).right


@pytest.mark.parametrize(
    ("answer", "feedback"), [("3 + 4 = 8", "Wrong number. Try again."), ("It is 7.", "Reply with only the number.")]
)
def test_the_feedback_says_whether_the_number_or_the_form_was_wrong(answer, feedback):
    verdict = chain_sum({"answer": "7"}, answer)
    assert not verdict.right
    assert verdict.feedback == feedback


@given(st.text(max_size=20))
def test_digits_are_scored_by_their_share(answer):
    verdict = digits({}, answer)
    assert 0.0 <= verdict.score <= 1.0
    assert verdict.right == (answer != "" and all(character.isdigit() for character in answer))


@given(verifier=st.sampled_from(sorted(VERIFIERS)), answer=st.text(max_size=20))
def test_any_text_is_scored_between_0_and_1(verifier, answer):
    assert 0.0 <= VERIFIERS[verifier]({"answer": "7"}, answer).score <= 1.0
