"""A model call as it stands on record: the data of a `model_request` event."""

from __future__ import annotations

from typing import Any

from leyden_gateway.proxy.upstream import Outcome

JSON = dict[str, Any]


def model_request(
    outcome: Outcome,
    *,
    request: JSON,
    asked: JSON,
    original: JSON,
    path: str,
    mode: str,
    call_id: str,
    delivered: bool,
) -> JSON:
    """The event's data: the contract's fields first, then Leyden's own.

    `request` is what was sent, `asked` what the agent had asked for where that differs, `original` what its own request
    said that `request` does not, in another protocol than upstream's. Takes `routed_experts` out of
    the outcome's response.
    """
    model, response = outcome.model, outcome.response
    data: JSON = {
        "model": model.model,
        "model_version": model.version,
        "request": request,
        "response": response,
        "server": {"model": model.model, "endpoint": model.shown_endpoint, "version": model.version},
        "latency_ms": round(outcome.seconds * 1000, 3),
        "http_status": outcome.status,
        "status": "ok" if outcome.ok else "error",
        "retry_count": outcome.tries - 1,
        "usage": _usage(response),
        "finish_reason": _finish_reason(response),
        "routed_experts": _take_routed_experts(response),
        "asked": asked,
        "delivered": delivered,
        "call_id": call_id,
        "path": path,
        "mode": mode,
    }
    if original:
        data["original"] = original
    if outcome.fault:
        data["fault"] = outcome.fault
    return data


def tokens_of(response: JSON) -> int:
    """Prompt and sampled tokens of a response, as the server counts them, else by the ids that it gave."""
    usage = _usage(response) or {}
    counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
    if any(type(count) is int for count in counts):
        return sum(count for count in counts if type(count) is int and count > 0)
    choices = response.get("choices")
    sampled = [each.get("token_ids") for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    return sum(len(ids) for ids in (response.get("prompt_token_ids"), *sampled) if isinstance(ids, list))


def _first_choice(response: JSON) -> JSON:
    choices = response.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _usage(response: JSON) -> JSON | None:
    usage = response.get("usage")
    return usage if isinstance(usage, dict) else None


def _finish_reason(response: JSON) -> str | None:
    reason = _first_choice(response).get("finish_reason")
    return reason if isinstance(reason, str) and reason else None


def _take_routed_experts(response: JSON) -> Any:
    """The first choice's routed experts; those of further choices stay with them."""
    choice = _first_choice(response)
    return choice.pop("routed_experts", None) if choice else None
