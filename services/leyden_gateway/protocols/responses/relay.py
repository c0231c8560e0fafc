"""Chat chunks → Responses events.

Invariants:
- sequence numbers count from 0 without a gap;
- nothing is sent before there is something to say;
- what comes with or after a finish reason, the ends of function calls, and the event that holds the whole Response wait
  for `finish`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from leyden_gateway.protocols import sse
from leyden_gateway.protocols.protocol import JSON
from leyden_gateway.protocols.responses.composing import Composition
from leyden_gateway.protocols.responses.envelope import Envelope, status_of


class ResponsesRelay:
    """Shows one stream's chunks as events."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._output = Composition(envelope.response_id)
        self._sequence_number = 0
        self._model: Any = None
        self._usage: Any = None
        self._finish_reason: Any = None
        self._index: Any = None

    def feed(self, chunk: JSON) -> bytes:
        self._model = self._model or chunk.get("model")
        self._usage = chunk.get("usage") or self._usage
        # Responses knows one choice; others come only from a server that gives more than it is asked for.
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            if self._index is None:
                self._index = index
            if index == self._index:
                self._finish_reason = self._finish_reason or choice.get("finish_reason")
                self._output.feed(choice.get("delta") or {})
        return self._say(self._output.show()) if self._finish_reason is None else b""

    def finish(self) -> bytes:
        ending = self._output.end(status_of(self._finish_reason))
        response = self._envelope.ended(self._output, self._finish_reason, self._model, self._usage)
        return self._say([*ending, {"type": f"response.{response['status']}", "response": response}])

    def fail(self, message: str) -> bytes:
        """What a stream ends with that goes on no more."""
        code = "server_error"
        # OpenAI documents the flat fields and sends the nested ones, which are what its SDK raises on.
        error = {"type": "error", "code": code, "message": message, "param": None}
        nested = {"error": {"type": code, "code": code, "message": message, "param": None}}
        failed = self._envelope.failed(self._output, self._model, message)
        return self._say([error | nested, {"type": "response.failed", "response": failed}])

    def _say(self, events: list[JSON]) -> bytes:
        if events and not self._sequence_number:
            begun = self._envelope.begun(self._model)
            opening = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
            events = [*opening, *events]
        return b"".join(self._numbered(events))

    def _numbered(self, events: Iterable[JSON]) -> Iterable[bytes]:
        for event in events:
            numbered = {**event, "sequence_number": self._sequence_number}
            self._sequence_number += 1
            yield sse.event(orjson.dumps(numbered), event["type"].encode())
