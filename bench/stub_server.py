"""A model server that does no work: it answers chat completions with ready-made bytes, as fast as Python can.

Invariants:
- an answer has token ids and log probs if the request asked for them, and is a stream if the request asked for one;
- answers cycle through `--answers` different ones, all made at start-up;
- a request is understood by looking for bytes in it, never by parsing JSON, so the stub costs little;
- `GET /count` tells how many completions were asked for since the start.

Speaks HTTP/1.1 with Content-Length bodies and keep-alive, which is what wrk, httpx and Leyden send. No pipelining.
"""

import argparse
import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import cast

import uvloop

from bench import answers
from bench.answers import Sizes

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_TOKEN_IDS = re.compile(rb'"return_token_ids": ?true')


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed answer: the head, then one HTTP chunk an event, `data: [DONE]` and the end of the body in the last."""

    head: bytes
    events: list[bytes]


@dataclass(slots=True)
class Repertoire:
    """Everything the stub can say; each call takes the next of its kind. `asked` counts the calls."""

    whole: Iterator[bytes]
    plain: Iterator[bytes]
    streams: Iterator[Stream]
    models: bytes
    missing: bytes
    asked: int = 0

    @classmethod
    def of(cls, sizes: Sizes, count: int) -> "Repertoire":
        return cls.saying([answers.answer(sizes, seed) for seed in range(count)], sizes)

    @classmethod
    def saying(cls, made: list[dict], streamed: Sizes | None = None) -> "Repertoire":
        """These answers in turn; streams only if they are those of the seeds from 0 on, of these sizes."""
        return cls(
            whole=cycle([_json_answer(body) for body in made]),
            plain=cycle([_json_answer(answers.without_token_ids(body)) for body in made]),
            streams=cycle([_stream(streamed, seed) for seed in range(len(made))] if streamed else []),
            models=_json_answer({"object": "list", "data": [{"id": answers.MODEL, "object": "model"}]}),
            missing=_json_answer({"error": {"message": "no such route"}}, status=b"404 Not Found"),
        )


class StubProtocol(asyncio.Protocol):
    """One connection.

    `think_seconds` is the time before the first byte of an answer, `token_seconds` that between the events of a stream.
    """

    def __init__(self, repertoire: Repertoire, think_seconds: float, token_seconds: float) -> None:
        self._repertoire = repertoire
        self._think_seconds = think_seconds
        self._token_seconds = token_seconds
        self._unread = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        unread = self._unread + data if self._unread else data
        end = unread.find(b"\r\n\r\n")
        length = 0
        if end >= 0 and (found := _LENGTH.search(unread, 0, end)):
            length = int(found[1])
        if end < 0 or len(unread) < end + 4 + length:
            self._unread = unread
            return
        self._unread = b""
        if self._think_seconds:
            asyncio.get_running_loop().call_later(self._think_seconds, self._answer, unread)
        else:
            self._answer(unread)

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"POST /v1/chat/completions"):
            self._repertoire.asked += 1
            self._complete(request)
        elif request.startswith(b"GET /v1/models"):
            self._write(self._repertoire.models)
        elif request.startswith(b"GET /health"):
            self._write(_json_answer({}))
        elif request.startswith(b"GET /count"):
            self._write(_json_answer({"asked": self._repertoire.asked}))
        else:
            self._write(self._repertoire.missing)

    def _complete(self, request: bytes) -> None:
        if _STREAM.search(request):
            stream = next(self._repertoire.streams)
            if self._token_seconds:
                self._write(stream.head)
                self._trickle(iter(stream.events))
            else:
                for event in (stream.head, *stream.events):
                    self._write(event)
        elif _TOKEN_IDS.search(request):
            self._write(next(self._repertoire.whole))
        else:
            self._write(next(self._repertoire.plain))

    def _trickle(self, events: Iterator[bytes]) -> None:
        if (event := next(events, None)) is not None and self._transport is not None:
            self._write(event)
            asyncio.get_running_loop().call_later(self._token_seconds, self._trickle, events)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _json_answer(body: dict, status: bytes = b"200 OK") -> bytes:
    content = answers.dumps(body)
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(content),
        content,
    )


def _stream(sizes: Sizes, seed: int) -> Stream:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    events = [_http_chunk(b"data: %b\n\n" % answers.dumps(chunk)) for chunk in answers.chunks(sizes, seed)]
    return Stream(head, [*events, _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"])


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, protocol: Callable[[], asyncio.Protocol]) -> None:
    """Serve on 127.0.0.1 until cancelled."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.stub_server", description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--prompt-tokens", type=int, default=Sizes().prompt_tokens)
    options.add_argument("--answer-tokens", type=int, default=Sizes().answer_tokens)
    options.add_argument("--answers", type=int, default=64, help="how many different answers to cycle through")
    options.add_argument("--think-ms", type=float, default=0.0, help="time before an answer begins")
    options.add_argument("--token-ms", type=float, default=0.0, help="time between the events of a stream")
    given = options.parse_args()
    repertoire = Repertoire.of(Sizes(given.prompt_tokens, given.answer_tokens), given.answers)
    uvloop.run(serve(given.port, lambda: StubProtocol(repertoire, given.think_ms / 1000, given.token_ms / 1000)))


if __name__ == "__main__":
    main()
