"""A chat completion → a Message.

Invariants:
- the input of a tool is always an object: arguments that were sampled as anything else stand in it as they are, under
  `INVALID_JSON`, so that nothing acts on half of them and nothing is lost;
- what is said here of a whole answer is what its stream says, event by event.
"""

from __future__ import annotations

from typing import Any

from leyden_gateway import strict_json
from leyden_gateway.protocols.protocol import JSON, Malformed

INVALID = "INVALID_JSON"
"""The provider's own word for it."""

_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


def check_said(response: JSON) -> None:
    """Refuse a chat completion whose first choice holds no message that can be said again.

    Raises:
        Malformed: a text or a tool call is none.
    """
    said = response["choices"][0].get("message") or {}
    if not isinstance(said, dict):
        raise Malformed(f"a message is {type(said).__name__}, not an object")
    for name in ("content", "reasoning", "reasoning_content"):
        if not isinstance(said.get(name) or "", str):
            raise Malformed(f"a message's {name} is {type(said[name]).__name__}, not a string")
    calls = said.get("tool_calls") or []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise Malformed(f"a message's tool calls are {str(calls)[:200]!r}")


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return False
    texts = (call.get("id"), function.get("name"), function.get("arguments"))
    return all(isinstance(text or "", str) for text in texts)


def message(response: JSON) -> JSON:
    """The Message that a chat completion, checked before, is."""
    choice = response["choices"][0]
    content = blocks(choice.get("message") or {}, message_id(response))
    return opened(response, usage(response)) | {"content": content} | stopped(choice, content)


def opened(response: JSON, counted: JSON) -> JSON:
    """A Message of which nothing has been said yet; `response` may be a chunk."""
    return {
        "id": message_id(response),
        "type": "message",
        "role": "assistant",
        "model": response.get("model") or "",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counted,
    }


def message_id(response: JSON) -> str:
    """The id of the Message; the same for a chunk and the whole."""
    return f"msg_{str(response.get('id') or '').removeprefix('chatcmpl-')}"


def blocks(said: JSON, of: str) -> list[JSON]:
    """The content of a chat message, in the order in which models say it; `of` is the Message's id."""
    content = []
    if thought := reasoning(said):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text := said.get("content"):
        content.append({"type": "text", "text": text})
    content += [tool_use(call, of, number) for number, call in enumerate(said.get("tool_calls") or [])]
    return content


def reasoning(said: JSON) -> str:
    """The reasoning in a chat message or delta, by either of its names."""
    return said.get("reasoning") or said.get("reasoning_content") or ""


def tool_use(call: JSON, of: str, number: int) -> JSON:
    """The block of the Message's `number`-th call."""
    function = call.get("function") or {}
    return {
        "type": "tool_use",
        "id": call.get("id") or f"toolu_{of.removeprefix('msg_')}_{number}",
        "name": function.get("name") or "",
        "input": _input(function.get("arguments") or ""),
    }


def _input(arguments: str) -> JSON:
    if not arguments.strip():
        return {}
    try:
        value = strict_json.loads(arguments.encode())
    except strict_json.NotJSON:
        return {INVALID: arguments}
    return value if isinstance(value, dict) else {INVALID: arguments}


def stopped(choice: JSON, content: list[JSON]) -> JSON:
    """Why a choice, whose blocks are `content`, ended."""
    reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
    inputs = [block["input"] for block in content if block["type"] == "tool_use"]
    if reason in _STOP_REASONS:
        return {"stop_reason": _STOP_REASONS[reason]}
    # A call that a stop sequence cut short was not made.
    if isinstance(stop, str) and (not inputs or INVALID in inputs[-1]):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": "tool_use" if inputs else "end_turn"}


def usage(response: JSON) -> JSON:
    """What was read and sampled, in tokens; the provider counts what came from its cache apart."""
    counted = response.get("usage")
    cached = _count(counted.get("prompt_tokens_details"), "cached_tokens") if isinstance(counted, dict) else 0
    return {
        "input_tokens": max(0, _count(counted, "prompt_tokens") - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(counted, "completion_tokens"),
    }


def _count(counted: Any, name: str) -> int:
    count = counted.get(name) if isinstance(counted, dict) else None
    return count if type(count) is int else 0
