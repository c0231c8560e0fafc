"""What it costs to turn the log's events into training rows: attempts of several turns, decoded and aggregated.

    python -m bench.batch

Beside it stands a bare loop that only joins lists, with none of the checks, as the floor in plain Python. Time is per
call to the model, so that it can be set against what making that call costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import answers
from bench.answers import Sizes
from bench.machine import Machine
from bench.report import report
from leyden.log import decode, encode
from leyden.redis_server import find_server
from leyden.schemas import Event
from leyden_trainer.samples import Aggregation, Level, aggregate

_BETWEEN_TOKENS = 40
"""What stands between an answer and the next: a tool's result and the chat template's markers."""
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step costs, in µs of CPU time a model call; the median of several runs."""

    step: str
    prompt_tokens: int
    turns: int
    us_per_call: float


def attempt(sizes: Sizes, turns: int, seed: int) -> list[dict[str, Any]]:
    """The data of an attempt's calls: each prompt is the one before, its answer and `_BETWEEN_TOKENS` more."""
    calls = [answers.event(sizes, seed * turns + turn) for turn in range(turns)]
    prompt: list[int] = calls[0]["response"]["prompt_token_ids"]
    for call in calls:
        call["response"]["prompt_token_ids"] = prompt
        prompt = prompt + call["response"]["choices"][0]["token_ids"] + [271] * _BETWEEN_TOKENS
    return calls


def bare(events: Sequence[Event]) -> list[tuple[list[int], list[int], list[int], list[float]]]:
    """Rows as a loop without any check would make them: the floor."""
    rows: list[tuple[list[int], list[int], list[int], list[float]]] = []
    whole: list[int] = []
    for event in events:
        response = event.data["response"]
        choice = response["choices"][0]
        prompt, sampled = response["prompt_token_ids"], choice["token_ids"]
        log_probs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        if not rows or prompt[: len(whole)] != whole:
            rows.append((prompt, [], [], []))
            whole = prompt
        between = prompt[len(whole) :]
        _, ids, mask, row_log_probs = rows[-1]
        ids += between + sampled
        mask += [0] * len(between) + [1] * len(sampled)
        row_log_probs += [0.0] * len(between) + log_probs
        whole = prompt + sampled
    return rows


def costs(sizes: Sizes, turns: int, attempts: int) -> list[Cost]:
    """The cost of each step on attempts of these sizes.

    Raises:
        ValueError: the rows are not those of the bare loop.
    """
    payloads = [[encode(call) for call in attempt(sizes, turns, seed)] for seed in range(attempts)]
    events = [_events(str(seed), each) for seed, each in enumerate(payloads)]
    limits = Aggregation(Level.TRAJECTORY, max_prompt_length=1 << 20, max_response_length=1 << 20)
    for each in events:
        ours, floor = aggregate(each, limits).rows, bare(each)
        if [(list(row.prompt_ids), list(row.response_ids)) for row in ours] != [row[:2] for row in floor]:
            raise ValueError("the rows differ from the bare loop's")
    steps: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "decode the payloads": (lambda each: [decode(payload) for payload in each], payloads),
        "aggregate": (lambda each: aggregate(each, limits), events),
        "bare loop instead": (bare, events),
    }
    return [
        Cost(step, sizes.prompt_tokens, turns, _microseconds(work, items) / (attempts * turns))
        for step, (work, items) in steps.items()
    ]


def _events(rollout: str, payloads: Sequence[bytes]) -> list[Event]:
    return [
        Event(event_type="model_request", rollout_id=rollout, attempt_id="0", timestamp=0.0, data=decode(payload))
        for payload in payloads
    ]


def _microseconds(work: Callable[[Any], Any], items: Sequence[Any]) -> float:
    def once() -> float:
        began = time.thread_time()
        for item in items:
            work(item)
        return time.thread_time() - began

    return statistics.median(once() for _ in range(_REPEATS)) * 1e6


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.batch", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--prompt-tokens", nargs="+", type=int, default=[512, 16384])
    options.add_argument("--turns", type=int, default=8)
    options.add_argument("--attempts", type=int, default=32)
    options.add_argument("--out", type=Path, default=Path("build/bench/batch.json"))
    given = options.parse_args()
    machine = Machine.here(find_server())
    found = [each for tokens in given.prompt_tokens for each in costs(Sizes(tokens), given.turns, given.attempts)]
    table = Table(title=f"attempts of {given.turns} turns")
    for column in ("first prompt", "step", "µs/call"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for each in found:
        table.add_row(str(each.prompt_tokens), each.step, f"{each.us_per_call:.0f}")
    report(given.out, machine, {"costs": [asdict(each) for each in found]}, table)


if __name__ == "__main__":
    main()
