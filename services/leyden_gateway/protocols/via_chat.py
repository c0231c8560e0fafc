"""What protocols have in common that go upstream as chat completions.

Invariant: what is sent, checked, assembled and recorded is what a chat completion's call sends, checks, assembles and
records; only the agent's side differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from leyden_gateway.protocols.chat import ChatCompletions
from leyden_gateway.protocols.protocol import JSON, Assembly, Relay

_CHAT = ChatCompletions()


class ViaChat(ABC):
    """The upstream side of a `ModelProtocol`; the agent's side is the subclass's."""

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
        return b"".join([relay.feed(chunk) for chunk in _CHAT.chunks(response)]) + relay.finish()
