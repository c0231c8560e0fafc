"""A model server of vLLM's shapes whose answers a test can script: what it got is kept, what it says is a queue.

Without a script it answers every request with `TEXT`, one token a word.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

JSON = dict[str, Any]
TEXT = "the answer is four"
MODEL = "stub-model"


def prompt_ids(body: JSON) -> list[int]:
    """Token ids of a prompt: one a word, always the same for the same word."""
    if "messages" in body:
        text = " ".join(f"{message['role']} {message.get('content')}" for message in body["messages"])
    else:
        text = str(body.get("prompt"))
    return token_ids(text)


def token_ids(text: str) -> list[int]:
    """One id a token."""
    return [zlib.crc32(token.encode()) % 50_000 for token in tokens_of(text)]


def entry(token: str, log_prob: float = -0.5) -> JSON:
    """A token's log prob, as chat completions report it."""
    return {"token": token, "logprob": log_prob, "bytes": list(token.encode()), "top_logprobs": []}


def tokens_of(text: str) -> list[str]:
    """The text's tokens, which put together give the text again."""
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def chat_response(body: JSON, text: str = TEXT, *, finish_reason: str = "stop", **message: Any) -> JSON:
    """A chat completion as vLLM gives it, with what the body asks for."""
    ids, tokens = prompt_ids(body), tokens_of(text)
    choices = []
    for index in range(body.get("n") or 1):
        choice: JSON = {
            "index": index,
            "message": {"role": "assistant", "content": text, "reasoning": None, **message},
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [entry(token, -0.25 - index) for token in tokens]}
        choice["token_ids"] = [*token_ids(text)] if body.get("return_token_ids") else None
        choices.append(choice)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body.get("model"),
        "choices": choices,
        "system_fingerprint": "fp",
        "usage": _usage(ids, len(tokens) * len(choices)),
        "prompt_token_ids": ids if body.get("return_token_ids") else None,
    }


def chat_chunks(response: JSON, *, usage: bool) -> list[JSON]:
    """The stream that vLLM makes of the same answer: a role chunk, a chunk a token, the last with the reason."""
    top = {key: response[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    chunks: list[JSON] = []
    for choice in response["choices"]:
        opening: JSON = {**top, "choices": [_delta(choice, {"role": "assistant", "content": ""})]}
        if response.get("prompt_token_ids") is not None:
            opening["prompt_token_ids"] = response["prompt_token_ids"]
        chunks.append(opening)
    for choice in response["choices"]:
        parts = _message_parts(choice["message"])
        content = (choice["logprobs"] or {}).get("content")
        ids = choice.get("token_ids")
        length = max(len(parts), len(ids or []), len(content or []), 1)
        for place in range(length):
            piece = _delta(choice, parts[place] if place < len(parts) else {})
            if content is not None:
                piece["logprobs"] = {"content": content[place : place + 1]}
            if ids is not None:
                piece["token_ids"] = ids[place : place + 1]
            if place == length - 1:
                piece |= {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
            chunks.append({**top, "choices": [piece]})
    if usage:
        last = {**top, "choices": [], "usage": response["usage"]}
        chunks.append(last | {"system_fingerprint": response["system_fingerprint"]})
    return chunks


def completion_response(body: JSON, text: str = TEXT, *, finish_reason: str = "stop") -> JSON:
    """A completion as vLLM gives it."""
    ids, tokens = prompt_ids(body), tokens_of(text)
    choices = []
    for index in range(body.get("n") or 1):
        choice: JSON = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "text_offset": [sum(map(len, tokens[:place])) for place in range(len(tokens))],
                "token_logprobs": [-0.5] * len(tokens),
                "tokens": tokens,
                "top_logprobs": [{token: -0.5} for token in tokens],
            }
        if body.get("return_token_ids"):
            choice |= {"prompt_token_ids": ids, "token_ids": token_ids(text)}
        choices.append(choice)
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": body.get("model"),
        "choices": choices,
        "usage": _usage(ids, len(tokens) * len(choices)),
    }


def completion_chunks(response: JSON, *, usage: bool) -> list[JSON]:
    """The stream that vLLM makes of the same completion."""
    top = {key: response[key] for key in ("id", "object", "created", "model")}
    chunks: list[JSON] = []
    for choice in response["choices"]:
        tokens = tokens_of(choice["text"])
        for place, token in enumerate(tokens):
            piece: JSON = {"index": choice["index"], "text": token, "logprobs": None}
            piece |= {"finish_reason": None, "stop_reason": None}
            if choice["logprobs"] is not None:
                piece["logprobs"] = {key: values[place : place + 1] for key, values in choice["logprobs"].items()}
            if choice.get("token_ids") is not None:
                piece["token_ids"] = choice["token_ids"][place : place + 1]
                if place == 0:
                    piece["prompt_token_ids"] = choice["prompt_token_ids"]
            if place == len(tokens) - 1:
                piece["finish_reason"] = choice["finish_reason"]
            chunks.append({**top, "choices": [piece]})
    if usage:
        chunks.append({**top, "choices": [], "usage": response["usage"]})
    return chunks


Script = Callable[[JSON, web.Request], Awaitable[web.StreamResponse]]


class StubModel:
    """The server. `scripts` are used up in order, one a request; then `otherwise` answers."""

    def __init__(self) -> None:
        self.requests: list[JSON] = []
        self.paths: list[str] = []
        self.scripts: list[Script] = []
        self.otherwise: Script = answer()
        self.cancelled = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> StubModel:
        await self.start()
        return self

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/{path:.*}", self._handle)
        app.router.add_post("/{path:tokenize}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        host, bound = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{bound}/v1"

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.requests.append(body)
        self.paths.append(request.match_info["path"])
        script = self.scripts.pop(0) if self.scripts else self.otherwise
        try:
            return await script(body, request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def answer(text: str = TEXT, *, change: Callable[[JSON], object] = lambda _: None, **more: Any) -> Script:
    """Answer with a text, streamed if asked; `change` may spoil the response first."""

    async def script(body: JSON, request: web.Request) -> web.StreamResponse:
        if request.match_info["path"] == "tokenize":
            ids = prompt_ids(body)
            return _json(200, {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None})
        chat = request.match_info["path"] == "chat/completions"
        response = chat_response(body, text, **more) if chat else completion_response(body, text, **more)
        change(response)
        if not body.get("stream"):
            return _json(200, response)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        chunks = chat_chunks(response, usage=usage) if chat else completion_chunks(response, usage=usage)
        return await _stream(request, [*map(orjson.dumps, chunks), b"[DONE]"])

    return script


def status(code: int, body: Any = None, **headers: str) -> Script:
    """Answer with a status."""

    async def script(_: JSON, __: web.Request) -> web.StreamResponse:
        return _json(code, body if body is not None else {"error": {"message": f"scripted {code}"}}, headers)

    return script


def raw(data: bytes, *, content_type: str = "application/json", code: int = 200) -> Script:
    """Answer with these bytes."""

    async def script(_: JSON, __: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=code, content_type=content_type)

    return script


def events(*payloads: bytes, cut: bool = False) -> Script:
    """Stream these payloads; with `cut`, drop the connection after them."""

    async def script(_: JSON, request: web.Request) -> web.StreamResponse:
        response = await _stream(request, list(payloads), end=not cut)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return script


def drop() -> Script:
    """Close the connection without an answer."""

    async def script(_: JSON, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return script


def once(gate: asyncio.Event, then: Script | None = None, started: asyncio.Event | None = None) -> Script:
    """Wait for the gate, then answer; `started` is set when the request is there."""

    async def script(body: JSON, request: web.Request) -> web.StreamResponse:
        if started is not None:
            started.set()
        await gate.wait()
        return await (then or answer())(body, request)

    return script


def paced(gates: list[asyncio.Event], text: str = TEXT) -> Script:
    """Stream a chat answer, each token after the first when its gate opens."""

    async def script(body: JSON, request: web.Request) -> web.StreamResponse:
        chunks = chat_chunks(chat_response(body, text), usage=True)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        waits = iter([None, None, *gates])
        for chunk in chunks:
            gate = next(waits, None)
            if gate is not None:
                await gate.wait()
            await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return script


async def _stream(request: web.Request, payloads: list[bytes], *, end: bool = True) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for payload in payloads:
        await response.write(b"data: " + payload + b"\n\n")
    if end:
        await response.write_eof()
    return response


def _json(code: int, body: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=code, content_type="application/json", headers=headers)


def _delta(choice: JSON, delta: JSON) -> JSON:
    return {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": None}


def _message_parts(message: JSON) -> list[JSON]:
    parts: list[JSON] = (
        [{"reasoning": part} for part in tokens_of(message["reasoning"])] if message["reasoning"] else []
    )
    if message.get("content"):
        parts += [{"content": part} for part in tokens_of(message["content"])]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        parts.append(
            {"tool_calls": [{"index": index, **call, "function": {"name": function["name"], "arguments": ""}}]}
        )
        parts += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in tokens_of(function["arguments"])
        ]
    return parts


def _usage(ids: list[int], completion_tokens: int) -> JSON:
    return {
        "prompt_tokens": len(ids),
        "completion_tokens": completion_tokens,
        "total_tokens": len(ids) + completion_tokens,
    }
