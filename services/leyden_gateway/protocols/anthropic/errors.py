"""Errors as Anthropic's API spells them."""

from __future__ import annotations

from leyden_gateway.protocols.openai import error_text
from leyden_gateway.protocols.protocol import JSON

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_type(status: int) -> str:
    """The provider's name for what a status says."""
    return _TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")


def error_body(status: int, message: str, code: str | None = None) -> JSON:
    """An error in the provider's shape, with its name of the fault, where it has one that clients know."""
    details = {"details": {"error_code": code}} if code else {}
    return {"type": "error", "error": {"type": error_type(status), "message": message, **details}}


def refusal_body(status: int, response: JSON) -> JSON:
    """A model server's own error, said in the provider's shape."""
    return error_body(status, error_text(response.get("error") or response))
