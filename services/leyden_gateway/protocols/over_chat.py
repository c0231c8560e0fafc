"""The upstream half of every protocol that is forwarded as a chat completion.

Invariant: what is sent, checked, put together and recorded is what a chat call has; only the agent's side differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from leyden_gateway.protocols.chat import ChatCompletions
from leyden_gateway.protocols.protocol import JSON, Assembly, Relay

_CHAT = ChatCompletions()


class OverChat(ABC):
    """The parts of a `ModelProtocol` that look upstream; a protocol adds those that look to the agent."""

    upstream_path = _CHAT.upstream_path

    def capture(self, body: JSON, *, log_probs: bool, routed_experts: bool) -> None:
        _CHAT.capture(body, log_probs=log_probs, routed_experts=routed_experts)

    def check(self, response: JSON, body: JSON) -> None:
        _CHAT.check(response, body)

    def assembly(self) -> Assembly:
        return _CHAT.assembly()

    @abstractmethod
    def relay(self, asked: JSON) -> Relay: ...

    def replay(self, response: JSON, asked: JSON) -> bytes:
        relay = self.relay(asked)
        out = [relay.feed(chunk) for chunk in _CHAT.chunks(response)]
        return b"".join(out) + relay.finish()
