"""The Response object: the output, and around it how the answer ended and what was asked.

Invariant: it is made from what goes on record, so that an answer, its stream's last event and a later `GET` are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leyden_gateway.protocols.protocol import JSON
from leyden_gateway.protocols.responses import tools
from leyden_gateway.protocols.responses.composing import Composition
from leyden_gateway.protocols.responses.output import COMPLETED, IN_PROGRESS, INCOMPLETE

_ENDS_EARLY = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an incomplete answer, and what Responses calls them."""

_SHOWN: JSON = {
    "background": False,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
}
"""Parameters that a Response shows again, and what they are if not given."""

_NOT_REPEATED = frozenset({"input", "instructions", "tools"})
"""Parameters that the chat request on record holds already."""


def noted(asked: JSON, response_id: str, created_at: int) -> JSON:
    """What goes on record of a request beside its chat form."""
    note = {key: value for key, value in asked.items() if key not in _NOT_REPEATED}
    return {**note, "instructions": asked.get("instructions") is not None, "id": response_id, "created_at": created_at}


@dataclass(frozen=True, slots=True)
class Envelope:
    """One call's request, in both its forms."""

    original: JSON
    """What `noted` gave."""
    request: JSON
    """The chat request as it was sent."""

    @property
    def response_id(self) -> str:
        return self.original["id"]

    @property
    def messages(self) -> list[JSON]:
        """The chat messages without this call's own instructions, which don't hold for the next."""
        return self.request["messages"][1 if self.original["instructions"] else 0 :]

    def begun(self, model: Any) -> JSON:
        """The Response before there is any output."""
        return self._around(IN_PROGRESS, model)

    def ended(self, output: Composition, finish_reason: Any, model: Any, usage: Any) -> JSON:
        """The Response when all is there."""
        status = status_of(finish_reason)
        details = {"reason": _ENDS_EARLY[finish_reason]} if status == INCOMPLETE else None
        return self._around(
            status, model, output=output.output(status), usage=_usage(usage), incomplete_details=details
        )

    def failed(self, output: Composition, model: Any, message: str) -> JSON:
        """The Response of a call that failed on the way."""
        error = {"code": "server_error", "message": message}
        return self._around("failed", model, output=output.output(INCOMPLETE), error=error)

    def whole(self, response: JSON) -> JSON:
        """The Response for a whole chat completion."""
        choice = response["choices"][0]
        output = Composition(self.response_id)
        message = choice.get("message")
        output.feed(message if isinstance(message, dict) else {})
        output.complete()
        return self.ended(output, choice.get("finish_reason"), response.get("model"), response.get("usage"))

    def _around(self, status: str, model: Any, **more: Any) -> JSON:
        original, request = self.original, self.request
        shown = {key: default if original.get(key) is None else original[key] for key, default in _SHOWN.items()}
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": original["created_at"],
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": request["messages"][0]["content"] if original["instructions"] else None,
            "model": model or request.get("model"),
            "output": [],
            "reasoning": {"effort": None, "summary": None} | (original.get("reasoning") or {}),
            "temperature": request.get("temperature"),
            "text": {"format": {"type": "text"}} | _given(original.get("text")),
            "tools": tools.from_chat(request.get("tools") or []),
            "top_p": request.get("top_p"),
            "usage": None,
            **shown,
            **more,
        }


def status_of(finish_reason: Any) -> str:
    """How an answer ended that ended so."""
    return INCOMPLETE if isinstance(finish_reason, str) and finish_reason in _ENDS_EARLY else COMPLETED


def _given(text: Any) -> JSON:
    return {key: value for key, value in (text or {}).items() if value is not None}


def _usage(usage: Any) -> JSON | None:
    if not isinstance(usage, dict):
        return None
    took, gave = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    return {
        "input_tokens": took,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": gave,
        "output_tokens_details": {
            "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        },
        "total_tokens": _count(usage, "total_tokens") or took + gave,
    }


def _count(counts: Any, name: str) -> int:
    count = counts.get(name) if isinstance(counts, dict) else None
    return count if type(count) is int else 0
