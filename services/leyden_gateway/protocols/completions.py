"""OpenAI Completions."""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols.openai import ChoiceAssembly, OpenAIAssembly, OpenAIProtocol
from leyden_gateway.protocols.protocol import JSON, Malformed


class Completions(OpenAIProtocol):
    """`…/openai/v1/completions`: forwarded as it is."""

    path = "openai/v1/completions"
    upstream_path = "completions"

    def asked_log_probs(self, asked: JSON) -> bool:
        log_probs = asked.get("logprobs")  # 0 asks for those of the sampled tokens alone
        return log_probs is not None and log_probs is not False

    def capture(self, body: JSON, *, log_probs: bool, routed_experts: bool) -> None:
        body["return_token_ids"] = True
        if log_probs and not self.asked_log_probs(body):
            body["logprobs"] = True
        if routed_experts:
            body["return_routed_experts"] = True

    def assembly(self) -> OpenAIAssembly:
        return CompletionAssembly()

    def chunks(self, response: JSON) -> list[JSON]:
        top = {key: value for key, value in response.items() if key not in ("choices", "usage")}
        content, ends = [], []
        for choice in response["choices"]:
            end = {key: choice[key] for key in ("finish_reason", "stop_reason") if key in choice}
            content.append({**choice, "finish_reason": None, "stop_reason": None})
            ends.append({"index": choice.get("index", 0), "text": "", "logprobs": None, **end})
        chunks = [{**top, "choices": [choice]} for choice in [*content, *ends]]
        return [*chunks, {**top, "choices": [], "usage": response.get("usage")}]


class CompletionAssembly(OpenAIAssembly):
    """Completion chunks → a completion."""

    object_name = "text_completion"

    def new_choice(self) -> ChoiceAssembly:
        return _Text()


class _Text(ChoiceAssembly):
    _own = ChoiceAssembly._own | {"text"}

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []

    def feed_content(self, choice: JSON) -> None:
        text: Any = choice.get("text", "")
        if not isinstance(text, str):
            raise Malformed(f"a chunk's text is {type(text).__name__}, not a string")
        self._parts.append(text)

    def content(self) -> JSON:
        return {"text": "".join(self._parts)}
