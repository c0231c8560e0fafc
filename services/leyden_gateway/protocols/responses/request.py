"""A Responses request → a chat completions request.

Invariants:
- a parameter is translated, tolerated since an answer without it is still the one asked for, or refused by its name;
- one that Responses doesn't know (`top_k`, `seed`, `chat_template_kwargs`) goes upstream as it is, and upstream judges.
"""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols.protocol import JSON, AgentError
from leyden_gateway.protocols.responses import tools
from leyden_gateway.protocols.responses.items import Conversation

_RENAMED = {"max_output_tokens": "max_completion_tokens"}

_TRANSLATED = frozenset(
    {
        "input",
        "instructions",
        "previous_response_id",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "reasoning",
    }
)

_TOLERATED = frozenset(
    {
        "access_programs",
        "include",
        "max_tool_calls",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "truncation",
        "user",
    }
)
"""Parameters on which nothing here depends; on record, and shown again where a Response shows them."""

_REFUSED = frozenset(
    {"background", "background_options", "context_management", "conversation", "image", "moderation", "prompt"}
)
"""Parameters that ask for what the gateway doesn't do, unless they are null, false or empty."""

_CHATS_OWN = frozenset(
    {
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "response_format",
        "functions",
        "function_call",
        "logprobs",
    }
)
"""Names that mean something to chat completions and nothing to Responses."""

_OUTPUT_LOG_PROBS = "message.output_text.logprobs"


def to_chat(asked: JSON, earlier: list[JSON]) -> JSON:
    """The chat completions request for a Responses request that follows the messages `earlier`.

    Raises:
        AgentError: it has none.
    """
    _refuse_unsupported(asked)
    body = {_RENAMED.get(name, name): value for name, value in asked.items() if _goes_upstream(name, value)}
    body["messages"] = _messages(asked, earlier)
    if asked.get("tools"):
        body["tools"] = tools.to_chat(asked["tools"])
        if asked.get("tool_choice") is not None:
            body["tool_choice"] = tools.choice_to_chat(asked["tool_choice"])
        if asked.get("parallel_tool_calls") is not None:
            body["parallel_tool_calls"] = asked["parallel_tool_calls"]
    if (effort := _part_of(asked, "reasoning").get("effort")) is not None:
        body["reasoning_effort"] = effort
    if (form := _response_format(_part_of(asked, "text").get("format"))) is not None:
        body["response_format"] = form
    if asked.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return body


def _goes_upstream(name: str, value: Any) -> bool:
    return value is not None and name not in _TRANSLATED and name not in _TOLERATED and name not in _REFUSED


def _refuse_unsupported(asked: JSON) -> None:
    for name, value in asked.items():
        if name in _CHATS_OWN:
            raise AgentError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        if name in _REFUSED and value:
            raise _unsupported(name)
    if asked.get("truncation") not in (None, "disabled"):
        raise _unsupported("truncation", f" with the value {asked['truncation']!r:.100}")
    if asked.get("top_logprobs"):
        raise _unsupported("top_logprobs")
    include = asked.get("include") or []
    if not isinstance(include, list):
        raise AgentError("Invalid type for 'include': expected an array.", param="include")
    if _OUTPUT_LOG_PROBS in include:
        raise _unsupported("include", f" with {_OUTPUT_LOG_PROBS}")
    _part_of(asked, "metadata")


def _unsupported(name: str, how: str = "") -> AgentError:
    return AgentError(f"Unsupported parameter: '{name}'{how}.", param=name, code="unsupported_parameter")


def _messages(asked: JSON, earlier: list[JSON]) -> list[JSON]:
    instructions, given = asked.get("instructions"), asked.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise AgentError("Invalid type for 'instructions': expected a string.", param="instructions")
    opening = [{"role": "system", "content": instructions}] if instructions is not None else []
    conversation = Conversation([*opening, *earlier])
    if given is not None:
        conversation.add_input(given)
    elif not earlier:
        raise AgentError("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    return conversation.messages()


def _part_of(asked: JSON, name: str) -> JSON:
    value = asked.get(name)
    if value is not None and not isinstance(value, dict):
        raise AgentError(f"Invalid type for '{name}': expected an object.", param=name)
    return value or {}


def _response_format(form: Any) -> JSON | None:
    kind = form.get("type") if isinstance(form, dict) else form
    match kind:
        case None | "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}
        case _:
            raise AgentError(f"Invalid value: {kind!r:.100}.", param="text.format")
