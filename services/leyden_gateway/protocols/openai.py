"""What OpenAI's two completion protocols have in common: shapes of responses, chunks and errors.

Invariants:
- what goes to the agent is a copy; the response that is recorded stays whole;
- a relay lets nothing out that looks complete before `finish`: chunks with a finish reason, and all without choices
  (usage), wait;
- nothing is let out before there is something to say, so that until then a failed call can be asked again unseen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import orjson

from leyden_gateway.protocols import sse
from leyden_gateway.protocols.protocol import JSON, Malformed, Recall

_OF_INTEGERS = b"0123456789-,"
_ASSEMBLED = frozenset({"object", "choices", "usage", "prompt_token_ids"})
"""Top-level fields of chunks that an assembly treats itself; all others are taken from where they first stand."""


class OpenAIManners:
    """What OpenAI's protocols have in common however they go upstream: errors and silences."""

    keep_alive = sse.KEEP_ALIVE

    def problem(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSON:
        error: JSON = {"message": message, "type": _error_type(status), "code": code or status}
        return {"detail": message, "error": error | ({"param": param} if param else {})}

    def refusal(self, status: int, response: JSON) -> JSON:
        return response

    def paused(self, message: str, reason: str | None) -> JSON:
        return {"detail": message, "error": "gateway paused", "reason": reason}


class OneForAll:
    """The parts of a `ModelProtocol` that remembers nothing of a call: one object serves all of them."""

    def for_call(self) -> Self:
        return self

    async def prepare(self, asked: JSON, recall: Recall) -> None:
        return

    def original(self, asked: JSON) -> JSON:
        return {}

    def restore(self, call: JSON) -> None:
        return


class OpenAIProtocol(OpenAIManners, OneForAll, ABC):
    """The parts of a `ModelProtocol` that chat completions and completions share."""

    path: str
    upstream_path: str

    def upstream_body(self, asked: JSON) -> JSON:
        body = dict(asked)
        if body.get("stream"):
            # Usage is recorded; the relay drops it again unless the agent asked for it.
            options = body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return body

    @abstractmethod
    def asked_log_probs(self, asked: JSON) -> bool:
        """Whether the agent itself wants log probs."""

    def check(self, response: JSON, body: JSON) -> None:
        if response.get("error"):
            raise Malformed(f"an error inside an answer: {error_text(response['error'])}")
        choices = response.get("choices")
        if not isinstance(choices, list) or not choices:
            raise Malformed(f"no choices: {choices!r}")
        _check_ids("prompt_token_ids", response.get("prompt_token_ids"))
        for number, choice in enumerate(choices):
            if not isinstance(choice, dict):
                raise Malformed(f"choice {number} is {type(choice).__name__}, not an object")
            _check_ids(f"choice {number}: prompt_token_ids", choice.get("prompt_token_ids"))
            ids = choice.get("token_ids")
            _check_ids(f"choice {number}: token_ids", ids)
            # With `echo`, log probs cover the prompt too.
            count = log_prob_count(choice.get("logprobs"))
            if ids is not None and count is not None and count != len(ids) and not body.get("echo"):
                raise Malformed(f"choice {number} has {len(ids)} token ids and {count} log probs")

    def answer(self, response: JSON, asked: JSON) -> JSON:
        ids, log_probs = bool(asked.get("return_token_ids")), self.asked_log_probs(asked)
        experts = bool(asked.get("return_routed_experts"))
        if ids and log_probs and experts:
            return response
        answer = dict(response)
        if not ids:
            answer.pop("prompt_token_ids", None)
        answer["choices"] = [
            _without_capture(choice, ids=ids, log_probs=log_probs, experts=experts) for choice in response["choices"]
        ]
        return answer

    def error_event(self, status: int, message: str) -> bytes:
        error = {"message": message, "type": _error_type(status), "code": status}
        return sse.event(orjson.dumps({"error": error}))

    def replay(self, response: JSON, asked: JSON) -> bytes:
        relay = OpenAIRelay(self, asked)
        out = [relay.feed(chunk) for chunk in self.chunks(response)]
        return b"".join(out) + relay.finish()

    @abstractmethod
    def chunks(self, response: JSON) -> list[JSON]:
        """A response as the chunks of a stream: all content, then the finish reasons, then usage."""

    def relay(self, asked: JSON) -> OpenAIRelay:
        return OpenAIRelay(self, asked)


class OpenAIRelay:
    """Lets the chunks of one stream through, without what the agent did not ask for."""

    def __init__(self, protocol: OpenAIProtocol, asked: JSON) -> None:
        options = asked.get("stream_options")
        self._usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._ids = bool(asked.get("return_token_ids"))
        self._log_probs = protocol.asked_log_probs(asked)
        self._experts = bool(asked.get("return_routed_experts"))
        self._opening = b""
        self._held: list[bytes] = []

    def feed(self, chunk: JSON) -> bytes:
        choices = chunk.get("choices")
        if not choices:
            if self._usage and chunk.get("usage") is not None:
                self._held.append(sse.event(orjson.dumps(chunk)))
            return b""
        held = any(choice.get("finish_reason") is not None for choice in choices)
        opens = not held and all(map(_says_nothing, choices))
        visible = self._visible(chunk, choices)
        if visible is None:
            return b""
        out = sse.event(orjson.dumps(visible))
        if opens:
            self._opening += out
            return b""
        out, self._opening = self._opening + out, b""
        if held:
            self._held.append(out)
            return b""
        return out

    def finish(self) -> bytes:
        return b"".join([self._opening, *self._held, sse.END])

    def _visible(self, chunk: JSON, choices: list[JSON]) -> JSON | None:
        """The chunk as the agent asked for it, or None if nothing is left that an uncaptured stream would hold."""
        if self._ids and self._log_probs and self._usage:
            return chunk
        visible = dict(chunk)
        if not self._ids:
            visible.pop("prompt_token_ids", None)
        if not self._usage:
            visible.pop("usage", None)
        visible["choices"] = kept = [
            _without_capture(choice, ids=self._ids, log_probs=self._log_probs, experts=self._experts)
            for choice in choices
        ]
        return None if all(map(_is_empty, kept)) else visible


class OpenAIAssembly(ABC):
    """Puts a stream's chunks together; what a choice is, the subclasses know."""

    object_name: str

    def __init__(self) -> None:
        self._top: JSON = {}
        self._usage: Any = None
        self._prompt_ids: Any = None
        self._choices: dict[int, ChoiceAssembly] = {}

    @abstractmethod
    def new_choice(self) -> ChoiceAssembly: ...

    @property
    def finished(self) -> bool:
        return bool(self._choices) and all(choice.finish_reason is not None for choice in self._choices.values())

    @property
    def empty(self) -> bool:
        return not self._choices

    def feed(self, chunk: JSON) -> None:
        if not isinstance(chunk, dict):
            raise Malformed(f"a chunk is {type(chunk).__name__}, not an object")
        if chunk.get("error"):
            raise Malformed(f"an error inside the stream: {error_text(chunk['error'])}")
        for key, value in chunk.items():
            if key not in _ASSEMBLED and value is not None:
                self._top.setdefault(key, value)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        if chunk.get("prompt_token_ids") is not None:
            self._prompt_ids = chunk["prompt_token_ids"]
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            raise Malformed(f"a chunk's choices are {choices!r}")
        for choice in choices:
            if not isinstance(choice, dict):
                raise Malformed(f"a chunk's choice is {type(choice).__name__}, not an object")
            index = choice.get("index", 0)
            if type(index) is not int:
                raise Malformed(f"a chunk's choice has the index {index!r}")
            if index not in self._choices:
                self._choices[index] = self.new_choice()
            self._choices[index].feed(choice)

    def response(self) -> JSON:
        response: JSON = {"id": None, "object": self.object_name, "created": None, "model": None, **self._top}
        response["choices"] = [{"index": index, **self._choices[index].result()} for index in sorted(self._choices)]
        response["usage"] = self._usage
        if self._prompt_ids is not None:
            response["prompt_token_ids"] = self._prompt_ids
        return response


class ChoiceAssembly(ABC):
    """Puts one choice together: token ids, reasons and unknown fields here, the content in the subclasses."""

    _own: frozenset[str] = frozenset({"index", "logprobs", "finish_reason", "stop_reason", "token_ids"})

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._stop_reason: Any = None
        self._ids: list[Any] | None = None
        self._log_probs: dict[str, list[Any]] = {}
        self._rest: JSON = {}

    @abstractmethod
    def feed_content(self, choice: JSON) -> None: ...

    @abstractmethod
    def content(self) -> JSON: ...

    def feed(self, choice: JSON) -> None:
        self.feed_content(choice)
        if (ids := choice.get("token_ids")) is not None:
            if not isinstance(ids, list):
                raise Malformed(f"a chunk's token_ids are {type(ids).__name__}, not a list")
            if self._ids is None:
                self._ids = []
            self._ids.extend(ids)
        if (log_probs := choice.get("logprobs")) is not None:
            if not isinstance(log_probs, dict):
                raise Malformed(f"a chunk's logprobs are {type(log_probs).__name__}, not an object")
            for name, values in log_probs.items():
                if isinstance(values, list):
                    self._log_probs.setdefault(name, []).extend(values)
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]
        if choice.get("stop_reason") is not None:
            self._stop_reason = choice["stop_reason"]
        for key, value in choice.items():
            if key not in self._own and value is not None:
                self._rest.setdefault(key, value)

    def result(self) -> JSON:
        result = self.content()
        result |= {
            "logprobs": self._log_probs or None,
            "finish_reason": self.finish_reason,
            "stop_reason": self._stop_reason,
        }
        if self._ids is not None:
            result["token_ids"] = self._ids
        return result | self._rest


def error_text(error: Any) -> str:
    """What an upstream error says, in at most 500 characters."""
    text = error.get("message") if isinstance(error, dict) else error
    return str(text if text is not None else error)[:500]


def finish_reasons(response: JSON) -> list[Any]:
    """The finish reason of every choice that is an object."""
    choices = response.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]


def choices_asked(body: JSON) -> int:
    """How many choices a request asks for: `n` for each of its prompts, of which completions may have several."""
    n, prompt = body.get("n"), body.get("prompt")
    prompts = [each for each in prompt if isinstance(each, str | list)] if isinstance(prompt, list) else []
    return (n if type(n) is int else 1) * (len(prompts) or 1)


def log_prob_count(log_probs: Any) -> int | None:
    """Of how many tokens a choice reports log probs, or None if it reports none."""
    if not isinstance(log_probs, dict):
        return None
    values = log_probs.get("content", log_probs.get("token_logprobs"))
    return len(values) if isinstance(values, list) else None


def are_integers(values: Any) -> bool:
    """Whether JSON read by orjson is a list of integers. Written, they leave nothing but its brackets: a third of the
    time of looking at each."""
    if not isinstance(values, list):
        return False
    try:
        return orjson.dumps(values).translate(None, _OF_INTEGERS) == b"[]"
    except orjson.JSONEncodeError:
        return False


def _check_ids(where: str, ids: Any) -> None:
    if ids is None:
        return
    if not isinstance(ids, list):
        raise Malformed(f"{where} are {type(ids).__name__}, not a list")
    if not are_integers(ids):
        wrong = next(token for token in ids if type(token) is not int)
        raise Malformed(f"{where} hold {wrong!r}, which is not a token id")


def _without_capture(choice: JSON, *, ids: bool, log_probs: bool, experts: bool) -> JSON:
    kept = dict(choice)
    if not ids:
        kept.pop("token_ids", None)
        kept.pop("prompt_token_ids", None)
    if not log_probs and kept.get("logprobs") is not None:
        kept["logprobs"] = None
    if not experts:
        kept.pop("routed_experts", None)
    return kept


def _says_nothing(choice: JSON) -> bool:
    """Whether a chunk's choice only opens: a role, an empty text."""
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return not any(value for key, value in delta.items() if key != "role")
    return not choice.get("text") and not choice.get("token_ids")


def _is_empty(choice: JSON) -> bool:
    """Whether a chunk's choice exists only to carry token ids or log probs that were taken out."""
    if choice.get("finish_reason") is not None or choice.get("logprobs") is not None or choice.get("token_ids"):
        return False
    return choice.get("delta") == {} if "delta" in choice else not choice.get("text")


def _error_type(status: int) -> str:
    return "invalid_request_error" if 400 <= status < 500 else "server_error"
