"""Chat deltas → output items, in the order in which they begin, and the events that show them.

Invariants:
- items don't overlap: one ends before the next is shown, as OpenAI streams them;
- an agent may act on a function call once it has ended, so none ends before the whole answer does, and what comes after
  it waits;
- what has not the shape of a text or a call is not shown: it is on record, and nobody could read it;
- an answer without text and calls holds an empty message, so that its reader finds one.
"""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols.protocol import JSON
from leyden_gateway.protocols.responses.output import COMPLETED, FunctionCall, OutputItem, Reasoning, Refusal, Text

_KINDS: dict[str, type[OutputItem]] = {
    "reasoning": Reasoning,
    "reasoning_content": Reasoning,
    "content": Text,
    "refusal": Refusal,
}
"""Texts of a delta by what they become, in the order in which an answer holds them."""


class Composition:
    """The output of one response, as far as it has come."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._items: list[OutputItem] = []
        self._calls: dict[int, FunctionCall] = {}
        self._ended = 0

    def feed(self, delta: JSON) -> None:
        """Take one delta; a whole message is one too."""
        texts: dict[type[OutputItem], str] = {}
        for key, kind in _KINDS.items():
            if text := _text(delta.get(key)):
                texts.setdefault(kind, text)
        for kind, text in texts.items():
            if not self._items or type(self._items[-1]) is not kind:
                self._items.append(kind(self._response_id, len(self._items)))
            self._items[-1].add(text)
        calls = delta.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                index = call.get("index")
                self._feed_call(index if type(index) is int else place, call)

    def show(self) -> list[JSON]:
        """The events for what may be seen before the answer is complete and has not been."""
        events: list[JSON] = []
        for item in self._items[self._ended :]:
            if isinstance(item, FunctionCall) or item is self._items[-1]:
                return [*events, *item.show()]
            events += item.end(COMPLETED)
            self._ended += 1
        return events

    def end(self, status: str) -> list[JSON]:
        """The events for all that has not been seen; the last item ends with this status."""
        self.complete()
        events: list[JSON] = []
        for item in self._items[self._ended :]:
            events += item.end(status if item is self._items[-1] else COMPLETED)
        self._ended = len(self._items)
        return events

    def complete(self) -> None:
        """Add what a whole answer lacks."""
        if not any(isinstance(item, Text | FunctionCall) for item in self._items):
            self._items.append(Text(self._response_id, len(self._items)))

    def output(self, status: str) -> list[JSON]:
        """All items as they stand; the last one has this status."""
        return [item.item(status if item is self._items[-1] else COMPLETED) for item in self._items]

    def _feed_call(self, index: int, part: JSON) -> None:
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = FunctionCall(self._response_id, len(self._items))
            self._items.append(call)
        call.name += _text(function.get("name"))
        call.call_id = call.call_id or _text(part.get("id"))
        if arguments := _text(function.get("arguments")):
            call.add(arguments)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
