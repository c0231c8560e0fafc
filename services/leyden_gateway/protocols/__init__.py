"""The protocols that agents speak, one module or folder each, all forwarded as OpenAI chat completions or completions.

A new protocol is a module with a `ModelProtocol` and a line here.
"""

from leyden_gateway.protocols.anthropic.messages import Messages
from leyden_gateway.protocols.chat import ChatCompletions
from leyden_gateway.protocols.completions import Completions
from leyden_gateway.protocols.protocol import AgentError, Malformed, ModelProtocol
from leyden_gateway.protocols.responses import Responses

PROTOCOLS: dict[str, ModelProtocol] = {
    protocol.path: protocol for protocol in (ChatCompletions(), Completions(), Responses(), Messages())
}
"""Every protocol by the path under which agents call it."""

__all__ = ["PROTOCOLS", "AgentError", "Malformed", "ModelProtocol"]
