"""What an answer to a task is worth, and what the agent is told about it.

Nothing heavy is imported: an agent is a process of its own for every rollout, and importing reasoning-gym would cost it
a second. A test holds `chain_sum` equal to reasoning-gym's own scorer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation


@dataclass(frozen=True, slots=True)
class Verdict:
    """`score` lies in [0, 1] and is 1 for a right answer; `feedback` is for the one who answered."""

    score: float
    feedback: str

    @property
    def right(self) -> bool:
        return self.score == 1.0


def chain_sum(task: Mapping[str, str], answer: str) -> Verdict:
    """Score what stands after the last equals sign as reasoning-gym scores its sums.

    1 for the number alone, also as a sentence's end (`7 + 5 = 12.`); a share of 1 for the number among other words.
    """
    given, wanted = final_answer(answer).replace(",", ""), task["answer"]
    number = _number(given)
    if number is not None and number == Decimal(wanted):
        return Verdict(1.0, "Right.")
    share = len(wanted) / len(given) if wanted in given else 0.0
    return Verdict(share, "Reply with only the number." if number is None else "Wrong number. Try again.")


def final_answer(answer: str) -> str:
    """What stands after the last equals sign, without spaces and full stops around it."""
    return answer.rpartition("=")[2].strip(" \n.")


def digits(task: Mapping[str, str], answer: str) -> Verdict:
    """Score the share of digits among the answer's characters; `task` says nothing more."""
    share = sum(character.isdigit() for character in answer) / len(answer) if answer else 0.0
    return Verdict(share, "Right." if share == 1.0 else "More digits.")


VERIFIERS: dict[str, Callable[[Mapping[str, str], str], Verdict]] = {"chain_sum": chain_sum, "digits": digits}


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
