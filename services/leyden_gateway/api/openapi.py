"""The API's description: what FastAPI knows, and the model calls and credentials, of which it does not."""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols import PROTOCOLS
from leyden_gateway.protocols.responses import PATH as RESPONSES
from leyden_gateway.proxy.sampling import Mode

JSON = dict[str, Any]

_ATTEMPT = "/proxy/rollout/{rollout_id}/attempt/{attempt}/mode/{mode}"
_OPEN = ("/healthz", "/readyz")
_PROVIDERS = {"openai": "OpenAI", "anthropic": "Anthropic"}


def complete(document: JSON) -> JSON:
    """The document with what it lacks; changed in place."""
    paths: JSON = document["paths"]
    for path, protocol in PROTOCOLS.items():
        paths[f"{_ATTEMPT}/{path}"] = {"post": _call(path, protocol.upstream_path)}
    for provider in _PROVIDERS:
        paths[f"{_ATTEMPT}/{provider}/v1/models"] = {"get": _listing()}
    paths[f"{_ATTEMPT}/anthropic/v1/messages/count_tokens"] = {"post": _count()}
    paths[f"{_ATTEMPT}/{RESPONSES}/{{response_id}}"] = {"get": _again()}
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{"bearer": []}, {"key": []}]
    for path, operations in paths.items():
        for operation in operations.values():
            if path in _OPEN:
                operation["security"] = []
            for status, reason in _refusals(path, operation).items():
                operation["responses"].setdefault(status, _refused(reason))
    return document


def _refusals(path: str, operation: JSON) -> dict[str, str]:
    """The refusals that any operation of its kind may give, by status."""
    if path in _OPEN:
        return {"503": "Redis is away"} if path == "/readyz" else {}
    return (
        {status: _ERRORS[status] for status in ("401", "403", "503")}
        | ({"404": "Nothing of this name"} if "{" in path else {})
        | ({"400": "The attempt's id can't be one"} if "{mode}" in path else {})
        | ({"409": "It has ended, or something else is known under this name"} if operation.get("requestBody") else {})
        | ({"413": _ERRORS["413"]} if operation.get("requestBody") else {})
    )


def _refused(reason: str) -> JSON:
    return {
        "description": reason,
        "content": {"application/json": {"schema": {"type": "object", "required": ["detail"]}}},
    }


def _call(path: str, upstream_path: str) -> JSON:
    provider, _, route = path.partition("/v1/")
    translated = "" if route == upstream_path else f" Goes upstream, and on record, as {upstream_path}."
    return {
        "tags": ["model calls"],
        "summary": f"Call a model: {_PROVIDERS[provider]} {route}",
        "description": "The provider's own request and answer; streamed with `stream: true`. Recorded before answered."
        + translated,
        "parameters": _parameters(),
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {
            "200": {
                "description": "The provider's answer",
                "content": {"application/json": {}, "text/event-stream": {}},
            },
            **{status: _refused(reason) for status, reason in _ERRORS.items()},
        },
    }


def _listing() -> JSON:
    return {
        "tags": ["model calls"],
        "summary": "List the models that may be called; not a call, and not recorded",
        "parameters": _parameters(),
        "responses": {"200": {"description": "The provider's list", "content": {"application/json": {}}}},
    }


def _again() -> JSON:
    return {
        "tags": ["model calls"],
        "summary": "Read an answer of the attempt again, as the record gives it; not a call, and not recorded",
        "parameters": [*_parameters(), {"name": "response_id", "in": "path", "required": True, "schema": _TEXT}],
        "responses": {
            "200": {"description": "The provider's answer", "content": {"application/json": {}}},
            "404": _refused("The attempt has no such answer"),
        },
    }


def _count() -> JSON:
    return {
        "tags": ["model calls"],
        "summary": "Count a prompt's tokens by the model server's tokenizer; not a call, and not recorded",
        "parameters": _parameters(),
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {
            "200": {"description": "The provider's answer", "content": {"application/json": {}}},
            **{status: _refused(reason) for status, reason in _ERRORS.items() if status not in ("409", "429")},
        },
    }


def _parameters() -> list[JSON]:
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in {
            "rollout_id": _TEXT,
            "attempt": _TEXT,
            "mode": {"type": "string", "enum": [mode.value for mode in Mode]},
        }.items()
    ]


_TEXT: JSON = {"type": "string"}

_ERRORS = {
    "400": "Not a JSON object, or refused upstream",
    "401": "No key, or a wrong one",
    "403": "The key is for another attempt, or does not allow calls",
    "404": "No such rollout, mode or path",
    "409": "The rollout has ended, or another attempt has taken over",
    "413": "The body is too large",
    "429": "The run is paused; Retry-After says for how long to wait",
    "502": "No usable answer from the model server",
    "503": "No server of the model, or Redis is away; nothing was sampled or nothing is answered that is not on record",
    "504": "No answer from the model server in time",
}
