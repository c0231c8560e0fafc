"""OpenAI Responses, over chat completions."""

from leyden_gateway.protocols.responses.protocol import PATH, Responses

__all__ = ["PATH", "Responses"]
