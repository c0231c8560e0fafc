"""Chat chunks → the events of a Message's stream.

Invariants:
- thoughts and texts go out as they come, and the first call's block opens when the call begins; all inputs of tools go
  out at the end, each whole and a valid object, since half of one is of no use to an agent and may be no JSON at all;
- from the chunk with the finish reason on, everything waits for `finish`;
- the events, put together, are the Message that the same answer gives unstreamed. A model that thinks again after it
  has spoken, or speaks after it has called, gets a further block for that.
"""

from __future__ import annotations

from typing import Any

import orjson

from leyden_gateway.protocols import sse
from leyden_gateway.protocols.anthropic.message import message_id, opened, reasoning, stopped, tool_use, usage
from leyden_gateway.protocols.chat import ChatAssembly
from leyden_gateway.protocols.protocol import JSON

_EMPTY: dict[str, JSON] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
"""Blocks that grow, as they start; their deltas are `{kind}_delta` with the text under the block's own name."""


def event(kind: str, **fields: Any) -> bytes:
    """One event of a Message's stream."""
    return sse.event(orjson.dumps({"type": kind, **fields}), kind.encode())


PING = event("ping")


class MessageRelay:
    """Turns the chunks of one stream into events; of several choices only the first is looked at."""

    def __init__(self) -> None:
        self._first: JSON = {}
        self._counted: JSON = {}
        self._begun = False
        self._index = -1
        self._open = ""
        self._calls = _Calls()
        self._call_opened = False
        self._late: list[tuple[str, str]] = []
        self._ended: JSON | None = None
        self._held: list[bytes] = []

    def feed(self, chunk: JSON) -> bytes:
        if not self._first:
            self._first = chunk
        if chunk.get("usage") is not None:
            self._counted = chunk
        choice = next((each for each in chunk.get("choices") or [] if each.get("index", 0) == 0), None)
        if choice is None:
            return b""
        out = b"".join(self._said(choice.get("delta") or {}))
        if choice.get("finish_reason") is not None:
            self._ended = choice
        if self._ended is not None:
            self._held.append(out)
            return b""
        return out

    def finish(self) -> bytes:
        calls = self._calls.blocks(message_id(self._first))
        out = self._held + self._opening()
        for number, block in enumerate(calls):
            if number or not self._call_opened:
                out += self._start("tool_use", block | {"input": {}})
            delta = {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
            out.append(event("content_block_delta", index=self._index, delta=delta))
        for kind, text in self._late:
            out += self._grow(kind, text)
        out += self._stop()
        end = {"stop_reason": None, "stop_sequence": None} | stopped(self._ended or {}, calls)
        out += [event("message_delta", delta=end, usage=usage(self._counted)), event("message_stop")]
        return b"".join(out)

    def _said(self, delta: JSON) -> list[bytes]:
        out = []
        for kind, text in (("thinking", reasoning(delta)), ("text", delta.get("content"))):
            if not text or not isinstance(text, str):
                continue
            if self._call_opened:
                self._late.append((kind, text))
            else:
                out += self._grow(kind, text)
        if parts := delta.get("tool_calls"):
            self._calls.feed(parts)
            if not self._call_opened and self._calls.first_is_named:
                self._call_opened = True
                (block, *_) = self._calls.blocks(message_id(self._first))
                out += self._start("tool_use", block | {"input": {}})
        return out

    def _grow(self, kind: str, text: str) -> list[bytes]:
        out = [] if self._open == kind else self._start(kind, _EMPTY[kind])
        out.append(event("content_block_delta", index=self._index, delta={"type": f"{kind}_delta", kind: text}))
        return out

    def _start(self, kind: str, block: JSON) -> list[bytes]:
        out = self._opening() + self._stop()
        self._index += 1
        self._open = kind
        out.append(event("content_block_start", index=self._index, content_block=block))
        return out

    def _stop(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        return [event("content_block_stop", index=self._index)]

    def _opening(self) -> list[bytes]:
        """The Message's start, unless it has been said; with as many tokens read as are known by then."""
        if self._begun:
            return []
        self._begun = True
        counted = usage(self._first)
        if isinstance(ids := self._first.get("prompt_token_ids"), list):
            counted["input_tokens"] = len(ids)
        return [event("message_start", message=opened(self._first, counted | {"output_tokens": 0}))]


class _Calls:
    """The tool calls of a stream, put together."""

    def __init__(self) -> None:
        self._assembly = ChatAssembly()
        self._assembled = False
        self.first_is_named = False
        """Whether the call that stands first, whatever else comes, has its whole name: its arguments have begun."""

    def feed(self, parts: list[JSON]) -> None:
        self._assembled = True
        self._assembly.feed({"choices": [{"index": 0, "delta": {"tool_calls": parts}}]})
        self.first_is_named |= any(
            part.get("index", 0) == 0 and bool((part.get("function") or {}).get("arguments")) for part in parts
        )

    def blocks(self, of: str) -> list[JSON]:
        """Their blocks so far; `of` is the Message's id."""
        if not self._assembled:
            return []
        calls = self._assembly.response()["choices"][0]["message"]["tool_calls"]
        return [tool_use(call, of, number) for number, call in enumerate(calls)]
