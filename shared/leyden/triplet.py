"""What a trainer needs of an event: prompt ids, sampled ids, log probs, reward (`format=triplet` of the contract).

Invariants:
- nothing here raises on a recorded event, however its response looks: what can't be read is empty or null;
- of several calls with the same prompt ids one stays, in its own place: the last that the agent received, else the
  last. Calls without usable prompt ids, and all other events, all stay;
- whether the agent received a call is what the last event about it says, not only the call's own.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from leyden.schemas import Event

MODEL_REQUEST = "model_request"
REWARD = "reward"
UNDELIVERED = "undelivered"
"""Event of the gateway: the answer to the call `call_id` did not reach its agent."""
REDELIVERED = "redelivered"
"""Event of the gateway: a retry was given the answer to the call `call_id`."""

_KEPT = ("model_version_at_end", "http_status", "status", "delivered", "call_id", "late")


def to_triplet(data: dict[str, Any]) -> dict[str, Any]:
    """Reduce the data of a `model_request` to its ids, log probs and outcome.

    `prompt_token_ids` and `response_token_ids` are lists, empty where nothing was recorded; `response_log_probs` is a
    list of finite floats, or None when any is missing, not a number or not finite. `model_version_at_end`, `delivered`,
    `call_id` and `late`, which Agent Lightning does not know, are kept where they exist. What is a triplet already
    stays as it is.
    """
    if "response" not in data and "prompt_token_ids" in data:
        return data
    response = data.get("response")
    response = response if isinstance(response, dict) else {}
    choice = _first_choice(response)
    server = data.get("server")
    server = server if isinstance(server, dict) else {}
    triplet: dict[str, Any] = {
        "prompt_token_ids": _listed(response.get("prompt_token_ids")) or _listed(choice.get("prompt_token_ids")),
        "response_token_ids": _listed(choice.get("token_ids")),
        "response_log_probs": _log_probs(choice.get("logprobs")),
        "server": {"model": server.get("model"), "version": server.get("version")},
    }
    if data.get("routed_experts") is not None:
        triplet["routed_experts"] = data["routed_experts"]
    triplet |= {key: data[key] for key in _KEPT if key in data}
    if "error" in response:
        triplet["error"] = response["error"]
    return triplet


def triplets(events: Sequence[Event]) -> list[Event]:
    """Reduce an attempt's events, in their order, and leave out superseded calls; the events given are untouched."""
    deliveries = _deliveries(events)
    reduced = [_reduced(event, deliveries) for event in events]
    gone = superseded([event.data if event.event_type == MODEL_REQUEST else None for event in reduced])
    return [event for index, event in enumerate(reduced) if index not in gone]


def model_calls(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The triplets of an attempt's model requests, superseded ones included; events may be whole or triplets."""
    deliveries = _deliveries(events)
    return [_reduced(event, deliveries).data for event in events if event.event_type == MODEL_REQUEST]


def superseded(calls: Sequence[dict[str, Any] | None]) -> set[int]:
    """Indexes of the triplets that another one with the same prompt ids replaces; None stands for any other event.

    An undelivered call never replaces a delivered one: the answer that an abandoned call records late is not the one
    from which the agent went on.
    """
    kept: dict[tuple[int, ...], int] = {}
    gone: set[int] = set()
    for index, call in enumerate(calls):
        if call is None or (prompt := _prompt_key(call["prompt_token_ids"])) is None:
            continue
        before = kept.get(prompt)
        if before is None:
            kept[prompt] = index
        elif _delivered(call) or not _delivered(calls[before] or {}):
            kept[prompt] = index
            gone.add(before)
        else:
            gone.add(index)
    return gone


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a recorded JSON value is a finite number; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


def _deliveries(events: Iterable[Event]) -> dict[Any, bool]:
    """Call id → whether its answer reached the agent in the end, for calls of which later events tell."""
    told = [(event.data.get("call_id"), event.event_type) for event in events]
    return {call: kind == REDELIVERED for call, kind in told if kind in (UNDELIVERED, REDELIVERED) and _name(call)}


def _name(call_id: Any) -> bool:
    return isinstance(call_id, str)


def _reduced(event: Event, deliveries: dict[Any, bool]) -> Event:
    if event.event_type == MODEL_REQUEST:
        triplet = to_triplet(event.data)
        if _name(call_id := triplet.get("call_id")) and call_id in deliveries:
            triplet = {**triplet, "delivered": deliveries[call_id]}
        return event.model_copy(update={"data": triplet})
    if event.event_type == REWARD:
        kept = {key: event.data[key] for key in ("source", "reason") if key in event.data}
        return event.model_copy(update={"data": {"value": event.data.get("value"), **kept}})
    return event


def _first_choice(response: dict[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _log_probs(logprobs: Any) -> list[float] | None:
    if not isinstance(logprobs, dict):
        return None
    content, flat = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list):
        values = [item.get("logprob") if isinstance(item, dict) else None for item in content]
    elif isinstance(flat, list):
        values = flat
    else:
        return None
    numbers = [float(value) for value in values if is_number(value)]
    return numbers if len(numbers) == len(values) else None


def _prompt_key(ids: Any) -> tuple[int, ...] | None:
    """The ids as a key, or None when they can't say that two prompts are the same."""
    if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
        return tuple(ids)
    return None


def _delivered(call: dict[str, Any]) -> bool:
    return call.get("delivered") is not False
