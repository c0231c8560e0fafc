"""Events of one attempt become the rows that are trained on. Knows nothing of torch.

Invariants:
- only a call that the agent received, with ids and (in training) one finite log prob for each sampled id, is used;
- each sampled token of such a call has mask 1 in exactly one row, or is counted as dropped or cut, by reason;
- a row's prompt is never empty and within its limit; its response ends with a sampled token; mask and log probs are as
  long as the response; context has mask 0 and log prob 0;
- rows and what they hold depend on the events and their order alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from leyden.schemas import Event
from leyden.triplet import model_calls
from leyden_trainer.calls import Call, Dropped, Reason, usable_calls


class Level(StrEnum):
    """What becomes one row: each call, or consecutive calls of which each prompt goes on from the one before."""

    TRANSITION = "transition"
    TRAJECTORY = "trajectory"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How calls become rows; lengths in tokens. `max_total_length` bounds prompt and response together."""

    level: Level
    max_prompt_length: int
    max_response_length: int
    max_total_length: int | None = None
    routed_experts_required: bool = False

    def response_limit(self, prompt_length: int) -> int:
        """Tokens that a response may have after a prompt of this length."""
        if self.max_total_length is None:
            return self.max_response_length
        return max(min(self.max_response_length, self.max_total_length - prompt_length), 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on: sampled tokens (mask 1) with the context between them (mask 0).

    `log_probs` is None only where they were not required and at least one call has none. `versions` are the weights
    that each call recorded (`ids.Version` reads them), `routed_experts` is the last call's, which covers the whole
    sequence. `first_call` counts the attempt's model requests from 0.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    versions: tuple[Any, ...]
    first_call: int
    cut_tokens: int = 0
    routed_experts: Any = None
    later_versions: tuple[Any, ...] = ()
    """Weights that were put in place while one of its calls was being sampled."""

    @property
    def calls(self) -> int:
        return len(self.versions)

    @property
    def trained_tokens(self) -> int:
        return sum(self.response_mask)


@dataclass(frozen=True, slots=True)
class Samples:
    """What an attempt's events came to: `calls` model requests in, rows and dropped calls out."""

    rows: tuple[Row, ...]
    dropped: tuple[Dropped, ...]
    calls: int
    breaks: int = 0
    """Rows beyond the first that exist because a prompt did not go on from the call before it."""

    @property
    def cut_tokens(self) -> int:
        return sum(row.cut_tokens for row in self.rows)

    def dropped_calls(self) -> dict[Reason, int]:
        """Calls not trained on, by reason; reasons that did not occur are left out."""
        counted: Counter[Reason] = Counter()
        for each in self.dropped:
            counted[each.reason] += each.calls
        return dict(counted)


class EventsMixed(ValueError):
    """The events are of more than one attempt."""


def aggregate(events: Sequence[Event], aggregation: Aggregation, *, log_probs_required: bool = True) -> Samples:
    """Turn one attempt's events, in the log's order, whole or as triplets, into rows.

    Raises:
        EventsMixed: the events belong to several rollouts or attempts.
    """
    if len(attempts := {(event.rollout_id, event.attempt_id) for event in events}) > 1:
        raise EventsMixed(f"samples are built from one attempt, these events are of {sorted(attempts)}")
    recorded = model_calls(events)
    calls, dropped = usable_calls(
        recorded, log_probs_required=log_probs_required, experts_required=aggregation.routed_experts_required
    )
    sequences = _merge(calls) if aggregation.level is Level.TRAJECTORY else [_Sequence(call) for call in calls]
    rows: list[Row] = []
    for sequence in sequences:
        result = _within_limits(sequence, aggregation)
        if isinstance(result, Row):
            rows.append(result)
        else:
            dropped.append(result)
    dropped.sort(key=lambda each: each.call)
    breaks = max(len(sequences) - 1, 0) if aggregation.level is Level.TRAJECTORY else 0
    return Samples(tuple(rows), tuple(dropped), len(recorded), breaks)


@dataclass(slots=True)
class _Sequence:
    """Calls that follow one another, growing; `context` is the last call's prompt with its answer."""

    first: Call
    context: list[int] = field(init=False)
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] | None = field(default_factory=list)
    calls: list[tuple[int, Call]] = field(default_factory=list)
    """Each call with the place in `response` where its answer begins."""

    def __post_init__(self) -> None:
        self.context = self.first.prompt
        self.append(self.first)

    def continued_by(self, call: Call) -> bool:
        return call.prompt[: len(self.context)] == self.context

    def append(self, call: Call) -> None:
        between = call.prompt[len(self.context) :]
        self.response += between
        self.calls.append((len(self.response), call))
        self.response += call.sampled
        self.mask += [0] * len(between) + [1] * len(call.sampled)
        if self.log_probs is not None and call.log_probs is not None:
            self.log_probs += [0.0] * len(between) + call.log_probs
        else:
            self.log_probs = None
        self.context = call.prompt + call.sampled


def _merge(calls: Sequence[Call]) -> list[_Sequence]:
    sequences: list[_Sequence] = []
    for call in calls:
        if sequences and sequences[-1].continued_by(call):
            sequences[-1].append(call)
        else:
            sequences.append(_Sequence(call))
    return sequences


def _within_limits(sequence: _Sequence, limits: Aggregation) -> Row | Dropped:
    prompt, sampled, calls = sequence.first.prompt, sum(sequence.mask), len(sequence.calls)
    if len(prompt) > limits.max_prompt_length:
        detail = f"the first prompt has {len(prompt)} tokens, the limit is {limits.max_prompt_length}"
        return Dropped(Reason.PROMPT_TOO_LONG, sequence.first.place, calls, sampled, detail)
    end = min(len(sequence.response), limits.response_limit(len(prompt)))
    while end and not sequence.mask[end - 1]:  # context at the end of a row teaches nothing
        end -= 1
    if not end:
        detail = f"no room is left for an answer after a prompt of {len(prompt)} tokens"
        return Dropped(Reason.CUT_AWAY, sequence.first.place, calls, sampled, detail)
    mask = tuple(sequence.mask[:end])
    kept = [call for start, call in sequence.calls if start < end]
    return Row(
        prompt_ids=tuple(prompt),
        response_ids=tuple(sequence.response[:end]),
        response_mask=mask,
        log_probs=None if sequence.log_probs is None else tuple(map(float, sequence.log_probs[:end])),
        versions=tuple(call.version for call in kept),
        first_call=sequence.first.place,
        cut_tokens=sampled - sum(mask),
        routed_experts=kept[-1].routed_experts,
        later_versions=tuple(call.version_at_end for call in kept if call.version_at_end != call.version),
    )
