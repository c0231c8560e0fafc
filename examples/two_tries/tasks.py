"""Task sets for the agent with two tries: rows that become rollouts' `input`.

Invariants:
- a set is a function of its arguments alone, so that a rerun asks for the same rollouts;
- no question is both in training and held out, and none comes twice in either.

A row: `{data_id, verifier, instructions, question, answer, max_tokens}`; all are strings but the last.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Rows to train on and rows held out for evaluation."""

    train: list[Row]
    held_out: list[Row]

    def write(self, folder: Path) -> None:
        """Write `train.jsonl` and `held_out.jsonl`, a row a line."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("train", self.train), ("held_out", self.held_out)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def chain_sums(*, train: int, held_out: int, seed: int, max_digits: int = 1) -> TaskSet:
    """Sums and differences of two numbers, made by reasoning-gym, without those whose result is negative.

    Raises:
        ValueError: there are fewer different questions than rows asked for.
    """
    from reasoning_gym.arithmetic.chain_sum import ChainSumConfig, ChainSumDataset

    config = ChainSumConfig(
        min_terms=2, max_terms=2, min_digits=1, max_digits=max_digits, seed=seed, size=50 * (train + held_out)
    )
    entries = ChainSumDataset(config)
    rows = (
        {
            "verifier": "chain_sum",
            "instructions": "Reply with only the number.",
            "question": entry["question"],
            "answer": entry["answer"],
            "max_tokens": 12,
        }
        for entry in (entries[index] for index in range(config.size))
        if not entry["answer"].startswith("-")
    )
    return _split(rows, train=train, held_out=held_out, seed=seed)


def digits(*, train: int, held_out: int, seed: int) -> TaskSet:
    """A toy: whatever is asked, an answer of digits is right. For a model that knows no language."""
    rows = (
        {
            "verifier": "digits",
            "instructions": "Digits only.",
            "question": f"Number {number}?",
            "answer": "",
            "max_tokens": 12,
        }
        for number in range(train + held_out)
    )
    return _split(rows, train=train, held_out=held_out, seed=seed)


TASK_SETS: dict[str, Callable[..., TaskSet]] = {"chain_sums": chain_sums, "digits": digits}


def _split(rows: Iterable[Row], *, train: int, held_out: int, seed: int) -> TaskSet:
    distinct = list(_distinct(rows))
    if len(distinct) < train + held_out:
        raise ValueError(f"{train} + {held_out} rows were asked for, but there are {len(distinct)} different questions")
    random.Random(seed).shuffle(distinct)
    return TaskSet(train=distinct[held_out : held_out + train], held_out=distinct[:held_out])


def _distinct(rows: Iterable[Row]) -> Iterator[Row]:
    seen = set()
    for row in rows:
        if row["question"] not in seen:
            seen.add(row["question"])
            yield {"data_id": f"{row['verifier']}-{len(seen)}", **row}
