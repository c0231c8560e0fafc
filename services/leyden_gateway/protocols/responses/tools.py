"""Function tools and the choice among them, between Responses (flat) and chat completions (nested).

Invariant: a tool that runs at the provider is refused by its place, since nobody here would run it.
"""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols.protocol import JSON, AgentError

_DEFINITION = ("name", "description", "parameters", "strict")
_MODES = frozenset({"none", "auto", "required"})


def to_chat(tools: Any) -> list[JSON]:
    """The tools of a request as a chat completion's.

    Raises:
        AgentError: they are not a list of function tools.
    """
    if not isinstance(tools, list):
        raise AgentError("Invalid type for 'tools': expected an array.", param="tools")
    return [_to_chat(tool, f"tools[{place}]") for place, tool in enumerate(tools)]


def _to_chat(tool: Any, where: str) -> JSON:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise AgentError(f"Tools of type {kind!r:.100} are not supported, only functions.", param=f"{where}.type")
    if not isinstance(tool.get("name"), str):
        raise AgentError(f"Missing required parameter: '{where}.name'.", param=f"{where}.name")
    return {"type": "function", "function": {key: tool[key] for key in _DEFINITION if tool.get(key) is not None}}


def from_chat(tools: list[JSON]) -> list[JSON]:
    """A chat completion's tools as a Response shows them."""
    defaults = {"description": None, "parameters": None, "strict": False}
    return [{"type": "function", **defaults, **tool["function"]} for tool in tools]


def choice_to_chat(choice: Any) -> Any:
    """A request's `tool_choice` as a chat completion's.

    Raises:
        AgentError: it means another than a function.
    """
    if isinstance(choice, str) and choice in _MODES:
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise AgentError(f"This tool choice is not supported: {choice!r:.200}", param="tool_choice")
