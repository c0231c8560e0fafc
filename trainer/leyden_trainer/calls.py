"""Which recorded model calls can be trained on, and why the others can't.

Invariants:
- a usable call was received by the agent, has non-empty prompt and sampled ids, and, where log probs are required, one
  finite log prob for each sampled id;
- of usable calls, no two have the same prompt ids;
- every recorded call is either usable or dropped, with one reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from leyden.triplet import is_number, superseded

_MAX_ID = 2**31 - 1
_FIRST_ERROR_STATUS = 400


class Reason(StrEnum):
    """Why sampled tokens, or a call without any, are not trained on."""

    ERROR = "error"
    LATE = "late"
    UNDELIVERED = "undelivered"
    SUPERSEDED = "superseded"
    NO_PROMPT_IDS = "no_prompt_ids"
    NO_SAMPLED_IDS = "no_sampled_ids"
    BAD_IDS = "bad_ids"
    NO_LOG_PROBS = "no_log_probs"
    LENGTHS_DIFFER = "lengths_differ"
    NO_ROUTED_EXPERTS = "no_routed_experts"
    PROMPT_TOO_LONG = "prompt_too_long"
    CUT_AWAY = "cut_away"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Calls that are not trained on: `calls` of them from the attempt's `call`th (from 0) on, `tokens` sampled."""

    reason: Reason
    call: int
    calls: int
    tokens: int
    detail: str


@dataclass(frozen=True, slots=True)
class Call:
    """A usable call. `log_probs`, one a sampled id, is None only where none were required."""

    place: int
    prompt: list[int]
    sampled: list[int]
    log_probs: list[float] | None
    version: Any
    version_at_end: Any
    """What its server served once it had been sampled; another than `version` if an update came in between."""
    routed_experts: Any


def usable_calls(
    recorded: Sequence[dict[str, Any]], *, log_probs_required: bool, experts_required: bool
) -> tuple[list[Call], list[Dropped]]:
    """Sort an attempt's calls, given as triplets in the log's order."""
    received = [None if _not_received(call) else call for call in recorded]
    replaced = superseded(received)
    calls: list[Call] = []
    dropped: list[Dropped] = []
    for place, call in enumerate(recorded):
        fault = _not_received(call)
        if fault is None and place in replaced:
            fault = (Reason.SUPERSEDED, "another call has the same prompt ids")
        if fault is None:
            fault = _unusable(call, log_probs_required, experts_required)
        if fault is None:
            calls.append(_call(place, call))
        else:
            reason, detail = fault
            dropped.append(Dropped(reason, place, 1, len(_sampled(call)), detail))
    return calls, dropped


_Fault = tuple[Reason, str]


def _not_received(call: dict[str, Any]) -> _Fault | None:
    http_status = call.get("http_status")
    if call.get("status") == "error" or (is_number(http_status) and http_status >= _FIRST_ERROR_STATUS):
        return Reason.ERROR, f"http status {http_status}"
    if call.get("late") is True:
        return Reason.LATE, "recorded after the rollout or the attempt had ended"
    if call.get("delivered") is False:
        return Reason.UNDELIVERED, "the agent never got this answer"
    return None


def _unusable(call: dict[str, Any], log_probs_required: bool, experts_required: bool) -> _Fault | None:
    prompt, sampled, log_probs = _prompt(call), _sampled(call), _log_probs(call)
    if not prompt:
        return Reason.NO_PROMPT_IDS, f"prompt ids are {call.get('prompt_token_ids')!r}"
    if not sampled:
        return Reason.NO_SAMPLED_IDS, f"sampled ids are {call.get('response_token_ids')!r}"
    if bad := _first_bad(prompt) or _first_bad(sampled):
        return Reason.BAD_IDS, f"{bad[0]!r} is not a token id"
    if log_probs_required and log_probs is None:
        return Reason.NO_LOG_PROBS, "log probs are missing, or one is not a finite number"
    if log_probs_required and log_probs is not None and len(log_probs) != len(sampled):
        return Reason.LENGTHS_DIFFER, f"{len(sampled)} sampled ids have {len(log_probs)} log probs"
    if experts_required and call.get("routed_experts") is None:
        return Reason.NO_ROUTED_EXPERTS, "no routed experts were recorded"
    return None


def _call(place: int, call: dict[str, Any]) -> Call:
    server = call.get("server")
    version = server.get("version") if isinstance(server, dict) else None
    at_end = version if call.get("model_version_at_end") is None else call["model_version_at_end"]
    sampled, log_probs = _sampled(call), _log_probs(call)
    if log_probs is not None and len(log_probs) != len(sampled):
        log_probs = None
    return Call(
        place,
        _prompt(call),
        sampled,
        log_probs,
        version,
        version if at_end is None else at_end,
        call.get("routed_experts"),
    )


def _prompt(call: dict[str, Any]) -> list[Any]:
    return _listed(call.get("prompt_token_ids"))


def _sampled(call: dict[str, Any]) -> list[Any]:
    return _listed(call.get("response_token_ids"))


def _log_probs(call: dict[str, Any]) -> list[float] | None:
    values = call.get("response_log_probs")
    return values if isinstance(values, list) and all(map(is_number, values)) else None


def _listed(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else []


def _first_bad(ids: list[Any]) -> tuple[Any] | None:
    """The first value that is no token id, in a tuple since it may be None."""
    return next(((token,) for token in ids if type(token) is not int or not 0 <= token <= _MAX_ID), None)
