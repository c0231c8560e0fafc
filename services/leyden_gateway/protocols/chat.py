"""OpenAI Chat Completions."""

from __future__ import annotations

from typing import Any

from leyden_gateway.protocols.openai import ChoiceAssembly, OpenAIAssembly, OpenAIProtocol
from leyden_gateway.protocols.protocol import JSON, Malformed


class ChatCompletions(OpenAIProtocol):
    """`…/openai/v1/chat/completions`: forwarded as it is."""

    path = "openai/v1/chat/completions"
    upstream_path = "chat/completions"

    def asked_log_probs(self, asked: JSON) -> bool:
        return bool(asked.get("logprobs"))

    def capture(self, body: JSON, *, log_probs: bool, routed_experts: bool) -> None:
        body["return_token_ids"] = True
        if log_probs:
            body["logprobs"] = True
        if routed_experts:
            body["return_routed_experts"] = True

    def assembly(self) -> OpenAIAssembly:
        return ChatAssembly()

    def chunks(self, response: JSON) -> list[JSON]:
        top = {key: value for key, value in response.items() if key not in ("choices", "usage", "prompt_token_ids")}
        top["object"] = "chat.completion.chunk"
        content, ends = [], []
        for choice in response["choices"]:
            index, message = choice.get("index", 0), dict(choice.get("message") or {})
            calls = message.pop("tool_calls", None)
            if calls:
                message["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
            said = {key: choice[key] for key in ("logprobs", "token_ids") if key in choice}
            content.append({"index": index, "delta": message, "finish_reason": None, **said})
            end = {key: choice[key] for key in ("finish_reason", "stop_reason") if key in choice}
            ends.append({"index": index, "delta": {}, **end})
        chunks = [{**top, "choices": [choice]} for choice in [*content, *ends]]
        if chunks and response.get("prompt_token_ids") is not None:
            chunks[0]["prompt_token_ids"] = response["prompt_token_ids"]
        return [*chunks, {**top, "choices": [], "usage": response.get("usage")}]


class ChatAssembly(OpenAIAssembly):
    """Chat chunks → a chat completion."""

    object_name = "chat.completion"

    def new_choice(self) -> ChoiceAssembly:
        return _Message()


class _Message(ChoiceAssembly):
    """Deltas → a message: texts are joined, tool calls joined by their index, anything else is taken as it comes."""

    _own = ChoiceAssembly._own | {"delta", "message"}

    def __init__(self) -> None:
        super().__init__()
        self._role: Any = None
        self._texts: dict[str, list[str]] = {}
        self._values: JSON = {}
        self._calls: dict[int, JSON] = {}

    def feed_content(self, choice: JSON) -> None:
        delta = choice.get("delta")
        if delta is None:
            return
        if not isinstance(delta, dict):
            raise Malformed(f"a chunk's delta is {type(delta).__name__}, not an object")
        for key, value in delta.items():
            if key == "role":
                self._role = value or self._role
            elif key == "tool_calls":
                if not isinstance(value or [], list):
                    raise Malformed(f"a chunk's tool calls are {type(value).__name__}, not a list")
                for call in value or []:
                    self._feed_call(call)
            elif isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
            elif value is not None:
                self._values[key] = value

    def _feed_call(self, part: Any) -> None:
        if not isinstance(part, dict):
            raise Malformed(f"a chunk's tool call is {type(part).__name__}, not an object")
        index = part.get("index", 0)
        if type(index) is not int:
            raise Malformed(f"a chunk's tool call has the index {index!r}")
        call = self._calls.setdefault(index, {})
        for key, value in part.items():
            if key == "function" and value is not None:
                if not isinstance(value, dict):
                    raise Malformed(f"a chunk's tool call has the function {value!r}")
                function = call.setdefault("function", {"name": "", "arguments": ""})
                for name, text in value.items():
                    if isinstance(text, str):
                        function[name] = function.get(name, "") + text
            elif key != "index" and value is not None:
                call.setdefault(key, value)

    def content(self) -> JSON:
        message: JSON = {"role": self._role or "assistant", "content": None}
        message |= {key: "".join(parts) for key, parts in self._texts.items()}
        message |= self._values
        if self._calls:
            # A stream opens with an empty text where the unstreamed answer has none.
            message["content"] = message["content"] or None
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {"message": message}
