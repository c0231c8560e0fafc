"""Input items → chat messages.

Invariants:
- what an answer gave as several items (reasoning, text, function calls) becomes one assistant message again, as it was
  sampled, whether the agent sends the items back or names the answer by `previous_response_id`;
- an item or part that has no chat form is refused by its place in the input, never left out; only reasoning that can't
  be read (a summary, encrypted content) is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leyden_gateway.protocols.protocol import JSON, AgentError

_ROLES = {"user": "user", "system": "system", "developer": "system"}
"""Roles of input messages by what chat templates know; the assistant's are put together by themselves."""

_SPOKEN = {"output_text": "text", "input_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of an assistant's message, and where each holds its text."""


class Conversation:
    """Chat messages, put together item by item."""

    def __init__(self, messages: Iterable[JSON] = ()) -> None:
        self._messages = list(messages)
        self._assistant: JSON | None = None

    def add_input(self, given: Any) -> None:
        """Take the `input` of a request: a text or a list of items.

        Raises:
            AgentError: it is neither, or an item has no chat form.
        """
        if isinstance(given, str):
            self.add({"role": "user", "content": given}, "input")
            return
        if not isinstance(given, list):
            raise AgentError("Invalid type for 'input': expected a string or an array.", param="input")
        for place, item in enumerate(given):
            self.add(item, f"input[{place}]")

    def add(self, item: Any, where: str) -> None:
        """Take one item; `where` names its place.

        Raises:
            AgentError: it has no chat form.
        """
        kind = _object(item, where).get("type") or "message"
        take = _ITEMS.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise AgentError(f"Items of type {kind!r:.100} are not supported.", param=where)
        take(self, item, where)

    def messages(self) -> list[JSON]:
        """All messages so far."""
        return [*self._messages, self._assistant] if self._assistant is not None else self._messages

    def _message(self, item: JSON, where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            self._said(_spoken(content, f"{where}.content"))
            return
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise AgentError(f"Invalid role: {role!r:.100}.", param=f"{where}.role")
        self._append({"role": known, "content": _content(content, f"{where}.content")})

    def _said(self, text: str) -> None:
        message = self._assistant
        if message is not None and message["content"] is not None:
            if "tool_calls" in message:  # between calls and their outputs no other message may stand
                message["content"] += text
                return
            self._end_turn()
            message = None
        self._open_turn()["content"] = text

    def _function_call(self, item: JSON, where: str) -> None:
        function = {key: _text(item.get(key), f"{where}.{key}") for key in ("name", "arguments")}
        call = {"id": _text(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _function_call_output(self, item: JSON, where: str) -> None:
        call_id = _text(item.get("call_id"), f"{where}.call_id")
        output = _content(item.get("output"), f"{where}.output")
        self._append({"role": "tool", "tool_call_id": call_id, "content": output})

    def _reasoning(self, item: JSON, where: str) -> None:
        parts = item.get("content") or []
        if not isinstance(parts, list):
            raise AgentError(f"Invalid type for '{where}.content': expected an array.", param=f"{where}.content")
        texts = [_text(_object(part, where).get("text"), f"{where}.content") for part in parts]
        if self._assistant is not None and self._assistant.keys() != {"role", "content", "reasoning"}:
            self._end_turn()
        if texts:
            message = self._open_turn()
            message["reasoning"] = message.get("reasoning", "") + "".join(texts)

    def _open_turn(self) -> JSON:
        if self._assistant is None:
            self._assistant = {"role": "assistant", "content": None}
        return self._assistant

    def _end_turn(self) -> None:
        if self._assistant is not None:
            self._messages.append(self._assistant)
            self._assistant = None

    def _append(self, message: JSON) -> None:
        self._end_turn()
        self._messages.append(message)


_ITEMS: dict[str, Callable[[Conversation, JSON, str], None]] = {
    "message": Conversation._message,
    "function_call": Conversation._function_call,
    "function_call_output": Conversation._function_call_output,
    "reasoning": Conversation._reasoning,
}
"""How each type of item is taken."""


def _content(content: Any, where: str) -> str | list[JSON]:
    """A content as chat has it: a text stays one, and a single text part becomes one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise AgentError(f"Invalid type for '{where}': expected a string or an array.", param=where)
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Any, where: str) -> JSON:
    kind = _object(part, where).get("type")
    match kind:
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": _text(part.get("text"), f"{where}.text")}
        case "input_image":
            return _image(part, where)
        case "input_file" if not part.get("file_url"):
            return {"type": "file", "file": {key: value for key, value in part.items() if key != "type"}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case "input_file":
            raise AgentError("Files by URL are not supported.", param=f"{where}.file_url")
        case _:
            raise AgentError(f"Content of type {kind!r:.100} is not supported.", param=f"{where}.type")


def _image(part: JSON, where: str) -> JSON:
    if part.get("file_id"):
        raise AgentError("Images by file id are not supported; give an image_url.", param=f"{where}.file_id")
    image = {"url": _text(part.get("image_url"), f"{where}.image_url")}
    return {"type": "image_url", "image_url": image | ({"detail": part["detail"]} if part.get("detail") else {})}


def _spoken(content: Any, where: str) -> str:
    """The text of an assistant's message."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise AgentError(f"Invalid type for '{where}': expected a string or an array.", param=where)
    texts = []
    for place, part in enumerate(content):
        here = f"{where}[{place}]"
        kind = _object(part, here).get("type")
        key = _SPOKEN.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise AgentError(f"An assistant's content of type {kind!r:.100} is not supported.", param=f"{here}.type")
        texts.append(_text(part.get(key), f"{here}.{key}"))
    return "".join(texts)


def _object(value: Any, where: str) -> JSON:
    if not isinstance(value, dict):
        raise AgentError(f"Invalid type for '{where}': expected an object, got {value!r:.100}", param=where)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise AgentError(f"Invalid type for '{where}': expected a string, got {value!r:.100}", param=where)
    return value
