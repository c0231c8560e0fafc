"""Anthropic Messages."""

from __future__ import annotations

import orjson

from leyden_gateway.protocols import sse
from leyden_gateway.protocols.anthropic.chat_request import chat_body
from leyden_gateway.protocols.anthropic.errors import error_body, refusal_body
from leyden_gateway.protocols.anthropic.message import check_said, message
from leyden_gateway.protocols.anthropic.request import read_request
from leyden_gateway.protocols.anthropic.stream import PING, MessageRelay
from leyden_gateway.protocols.openai import OneForAll
from leyden_gateway.protocols.over_chat import OverChat
from leyden_gateway.protocols.protocol import JSON

_NOT_SENT = ("thinking", "context_management", "metadata")
"""Parameters that are tolerated, and that the upstream request does not hold as they were."""


class Messages(OneForAll, OverChat):
    """`…/anthropic/v1/messages`: forwarded as a chat completion."""

    path = "anthropic/v1/messages"
    keep_alive = PING

    def upstream_body(self, asked: JSON) -> JSON:
        return chat_body(read_request(asked))

    def original(self, asked: JSON) -> JSON:
        return {name: asked[name] for name in _NOT_SENT if asked.get(name) is not None}

    def check(self, response: JSON, body: JSON) -> None:
        super().check(response, body)
        check_said(response)

    def answer(self, response: JSON, asked: JSON) -> JSON:
        return message(response)

    def relay(self, asked: JSON) -> MessageRelay:
        return MessageRelay()

    def problem(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSON:
        return {"detail": message, **error_body(status, message, code)}

    def refusal(self, status: int, response: JSON) -> JSON:
        return refusal_body(status, response)

    def paused(self, message: str, reason: str | None) -> JSON:
        return self.problem(429, message) | {"reason": reason}

    def error_event(self, status: int, message: str) -> bytes:
        return sse.event(orjson.dumps(error_body(status, message)), b"error")
