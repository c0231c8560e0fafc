"""The items of an output, growing as a stream grows; an unstreamed answer is one that came all at once.

Invariants:
- ids follow from the response's id and the item's place, so that an item has the same id however often it is shown;
- an item's events come in OpenAI's order: added, its part added, deltas, its text done, its part done, done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from leyden_gateway.protocols.protocol import JSON

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class OutputItem(ABC):
    """One item; its events lack only their sequence numbers."""

    prefix: str
    events: str
    """What the types of its delta and done events begin with."""
    bare: ClassVar[JSON]
    """What it holds where its text belongs, before any of it."""

    def __init__(self, response_id: str, index: int) -> None:
        self.id = f"{self.prefix}_{response_id.partition('_')[2]}{index:02x}"
        self._index = index
        self._texts: list[str] = []
        self._shown: int | None = None
        """How many of its texts events have shown; None before any event has shown the item itself."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str) -> None:
        """Add to its text."""
        self._texts.append(text)

    def show(self) -> list[JSON]:
        """The events that show what none has shown yet: the item, more of its text."""
        events = self._opening() if self._shown is None else []
        text = "".join(self._texts[self._shown or 0 :])
        self._shown = len(self._texts)
        return [*events, self._delta(text)] if text else events

    @abstractmethod
    def item(self, status: str) -> JSON:
        """The item as it stands."""

    def end(self, status: str) -> list[JSON]:
        """The events that show the rest of it and end it."""
        return [*self.show(), *self._closing(status)]

    def _opening(self) -> list[JSON]:
        item = self.item(IN_PROGRESS) | self.bare
        return [{"type": "response.output_item.added", "output_index": self._index, "item": item}]

    def _delta(self, text: str) -> JSON:
        return self._event(f"{self.events}.delta", delta=text)

    def _closing(self, status: str) -> list[JSON]:
        return [{"type": "response.output_item.done", "output_index": self._index, "item": self.item(status)}]

    def _event(self, kind: str, **fields: Any) -> JSON:
        return {"type": kind, "item_id": self.id, "output_index": self._index, **fields}


class _WithPart(OutputItem):
    """An item whose text is a part of its content, the only one."""

    bare: ClassVar[JSON] = {"content": []}
    part_type: str
    text_key = "text"
    blank: ClassVar[JSON] = {}
    """What the part holds beside its text."""
    beside: ClassVar[JSON] = {}
    """What its text's events hold beside the text."""

    def _opening(self) -> list[JSON]:
        part = self._event("response.content_part.added", content_index=0, part=self._part(""))
        return [*super()._opening(), part]

    def _delta(self, text: str) -> JSON:
        return super()._delta(text) | {"content_index": 0} | self.beside

    def _closing(self, status: str) -> list[JSON]:
        done = self._event(f"{self.events}.done", content_index=0) | {self.text_key: self.text} | self.beside
        part = self._event("response.content_part.done", content_index=0, part=self._part(self.text))
        return [done, part, *super()._closing(status)]

    def _part(self, text: str) -> JSON:
        return {"type": self.part_type, self.text_key: text, **self.blank}


class Reasoning(_WithPart):
    """What the model thought before it answered."""

    prefix, events, part_type = "rs", "response.reasoning_text", "reasoning_text"

    def item(self, status: str) -> JSON:
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": [self._part(self.text)],
            "encrypted_content": None,
            "status": status,
        }


class Text(_WithPart):
    """A message with a text."""

    prefix, events, part_type = "msg", "response.output_text", "output_text"
    blank: ClassVar[JSON] = {"annotations": [], "logprobs": []}
    beside: ClassVar[JSON] = {"logprobs": []}

    def item(self, status: str) -> JSON:
        content = [self._part(self.text)]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class Refusal(Text):
    """A message with a refusal."""

    events, part_type, text_key = "response.refusal", "refusal", "refusal"
    blank: ClassVar[JSON] = {}
    beside: ClassVar[JSON] = {}


class FunctionCall(OutputItem):
    """A call; its text is its arguments."""

    prefix, events = "fc", "response.function_call_arguments"
    bare: ClassVar[JSON] = {"arguments": ""}

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__(response_id, index)
        self.name = ""
        self.call_id = ""

    def item(self, status: str) -> JSON:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id or f"call_{self.id}",
            "name": self.name,
            "arguments": self.text,
        }

    def _closing(self, status: str) -> list[JSON]:
        done = self._event(f"{self.events}.done", name=self.name, arguments=self.text)
        return [done, *super()._closing(status)]
