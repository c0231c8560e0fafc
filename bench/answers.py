"""Requests and answers of the size asked for, shaped like vLLM 0.32's with `return_token_ids` and `logprobs`.

Invariants:
- the same sizes and seed give the same bytes, so that every system under test sees the same traffic;
- answers differ from one another in ids, texts and log probs, so that they compress as real ones would;
- log probs are float32 values printed as doubles, as vLLM prints them.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

MODEL = "bench"
VOCABULARY = 151_936
_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of a call."""

    prompt_tokens: int = 512
    answer_tokens: int = 64


def request(sizes: Sizes, seed: int = 0, *, stream: bool = False) -> dict[str, Any]:
    """A chat request as an agent sends it, its text about as long as `prompt_tokens` tokens of English."""
    words = random.Random(seed)
    text = " ".join(words.choice(_WORDS) for _ in range(sizes.prompt_tokens))
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You are a helpful agent."}, {"role": "user", "content": text}],
        "max_tokens": sizes.answer_tokens,
        "temperature": 1.0,
    }
    return asked | {"stream": True} if stream else asked


def with_token_ids(asked: dict[str, Any]) -> dict[str, Any]:
    """The request as a gateway sends it upstream: what is measured against the stub alone."""
    return asked | {"return_token_ids": True, "logprobs": True}


def answer(sizes: Sizes, seed: int) -> dict[str, Any]:
    """One whole chat completion, about 8.9 kB for 512 prompt and 64 answer tokens."""
    prompt, sampled = _tokens(sizes, seed)
    return {
        "id": f"chatcmpl-{seed:032x}",
        "object": "chat.completion",
        "created": 1_790_000_000 + seed,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "".join(token.text for token in sampled),
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": {"content": [token.logprob_entry() for token in sampled]},
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": [token.id for token in sampled],
                "routed_experts": None,
            }
        ],
        "service_tier": None,
        "system_fingerprint": "vllm-0.32.0-tp1-00000000",
        "usage": _usage(sizes),
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chunks(sizes: Sizes, seed: int) -> Iterator[dict[str, Any]]:
    """The same completion as stream chunks: prompt ids in the first, one token in each later one, usage in the last."""
    prompt, sampled = _tokens(sizes, seed)
    head = {
        "id": f"chatcmpl-{seed:032x}",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000 + seed,
        "model": MODEL,
    }
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    yield head | {"choices": [first], "prompt_token_ids": prompt}
    for place, token in enumerate(sampled, 1):
        yield head | {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": token.text},
                    "logprobs": {"content": [token.logprob_entry()]},
                    "finish_reason": "stop" if place == len(sampled) else None,
                    "token_ids": [token.id],
                }
            ]
        }
    yield head | {"choices": [], "usage": _usage(sizes)}


def without_token_ids(whole: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that asked for neither ids nor log probs."""
    choice = whole["choices"][0] | {"token_ids": None, "logprobs": None}
    return whole | {"choices": [choice], "prompt_token_ids": None}


def event(sizes: Sizes, seed: int) -> dict[str, Any]:
    """The `model_request` data that a gateway records of such a call."""
    whole = answer(sizes, seed)
    return {
        "model": MODEL,
        "model_version": 3,
        "request": with_token_ids(request(sizes, seed)),
        "response": whole,
        "server": {"model": MODEL, "endpoint": "http://127.0.0.1:8000/v1", "version": 3},
        "latency_ms": 12.345678 + seed,
        "http_status": 200,
        "status": "ok",
        "retry_count": 0,
        "usage": whole["usage"],
        "finish_reason": "stop",
        "routed_experts": None,
        "asked": {"temperature": 0.2},
        "delivered": True,
        "call_id": f"{seed:032x}",
        "path": "chat/completions",
    }


def dumps(body: dict[str, Any]) -> bytes:
    return orjson.dumps(body)


@dataclass(frozen=True, slots=True)
class _Token:
    id: int
    text: str
    logprob: float

    def logprob_entry(self) -> dict[str, Any]:
        text = self.text.encode()
        return {"token": self.text, "logprob": self.logprob, "bytes": list(text), "top_logprobs": []}


def _tokens(sizes: Sizes, seed: int) -> tuple[list[int], list[_Token]]:
    draw = random.Random(seed)
    prompt = [_token_id(draw) for _ in range(sizes.prompt_tokens)]
    sampled = [
        _Token(_token_id(draw), " " + draw.choice(_WORDS), _float32(-draw.expovariate(1.5)))
        for _ in range(sizes.answer_tokens)
    ]
    return prompt, sampled


def _token_id(draw: random.Random) -> int:
    """Common tokens have low ids in real vocabularies, so ids are spread evenly over their logarithms."""
    return int(VOCABULARY ** draw.random())


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _usage(sizes: Sizes) -> dict[str, Any]:
    return {
        "prompt_tokens": sizes.prompt_tokens,
        "total_tokens": sizes.prompt_tokens + sizes.answer_tokens,
        "completion_tokens": sizes.answer_tokens,
        "prompt_tokens_details": None,
    }
