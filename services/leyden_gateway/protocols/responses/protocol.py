"""OpenAI Responses: `…/openai/v1/responses`."""

from __future__ import annotations

import time
import uuid

from leyden_gateway.protocols.openai import OpenAIManners
from leyden_gateway.protocols.over_chat import OverChat
from leyden_gateway.protocols.protocol import JSON, AgentError, Recall
from leyden_gateway.protocols.responses.envelope import Envelope, noted
from leyden_gateway.protocols.responses.items import Conversation
from leyden_gateway.protocols.responses.relay import ResponsesRelay
from leyden_gateway.protocols.responses.request import to_chat

PATH = "openai/v1/responses"


class Responses(OpenAIManners, OverChat):
    """One call: it has an id from the start, and remembers how far its stream has come."""

    path = PATH

    def __init__(self) -> None:
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created_at = int(time.time())
        self._envelope = Envelope({"id": self._id, "created_at": self._created_at, "instructions": False}, {})
        self._body: JSON = {}
        self._relay: ResponsesRelay | None = None

    def for_call(self) -> Responses:
        return Responses()

    async def prepare(self, asked: JSON, recall: Recall) -> None:
        earlier: list[JSON] = []
        if (previous := asked.get("previous_response_id")) is not None:
            call = await recall(lambda data: is_response(data, previous))
            if call is None:
                raise AgentError(
                    f"Previous response with id {previous!r:.200} not found.",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            earlier = _continued(call)
        self._body = to_chat(asked, earlier)
        self._envelope = Envelope(self.original(asked), self._body)

    def original(self, asked: JSON) -> JSON:
        return noted(asked, self._id, self._created_at)

    def restore(self, call: JSON) -> None:
        self._envelope = Envelope(call["original"], call["request"])

    def upstream_body(self, asked: JSON) -> JSON:
        return dict(self._body)

    def capture(self, body: JSON, *, log_probs: bool, routed_experts: bool) -> None:
        super().capture(body, log_probs=log_probs, routed_experts=routed_experts)
        self._envelope = Envelope(self._envelope.original, body)

    def answer(self, response: JSON, asked: JSON) -> JSON:
        return self._envelope.whole(response)

    def relay(self, asked: JSON) -> ResponsesRelay:
        self._relay = ResponsesRelay(self._envelope)
        return self._relay

    def error_event(self, status: int, message: str) -> bytes:
        return (self._relay or ResponsesRelay(self._envelope)).fail(message)


def is_response(call: JSON, response_id: object) -> bool:
    """Whether a recorded call (its event's data) gave the Response of this id."""
    return (call.get("original") or {}).get("id") == response_id


def recorded_response(call: JSON) -> JSON:
    """The Response that a recorded call gave."""
    return Envelope(call["original"], call["request"]).whole(call["response"])


def _continued(call: JSON) -> list[JSON]:
    """The messages of a recorded call and its answer, for a call that goes on from there."""
    conversation = Conversation(Envelope(call["original"], call["request"]).messages)
    for place, item in enumerate(recorded_response(call)["output"]):
        conversation.add(item, f"output[{place}]")
    return conversation.messages()
