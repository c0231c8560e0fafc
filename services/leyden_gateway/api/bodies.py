"""Request bodies of the API: bounded, and JSON in the strict sense.

Invariant: no NaN, infinity or broken text gets in; what is read can be written to the log and read back the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden_gateway import strict_json
from leyden_gateway.access import any_caller
from leyden_gateway.proxy.client import BodyTooLarge


class StrictRequest(Request):
    """A request whose body is read by a parser that takes no more than JSON."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return strict_json.loads(body)
        except strict_json.NotJSON as error:
            raise json.JSONDecodeError(str(error), "", error.position) from None


class StrictRoute(APIRoute):
    """A route that knows its caller before it reads a body, and reads it strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            await any_caller(request)
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


class BodyLimit:
    """Middleware that answers 413 to a body larger than the limit, without reading all of it."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._limit_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"")
        read = 0

        async def bounded() -> Message:
            nonlocal read
            if announced.isdigit() and int(announced) > self._limit_bytes:
                raise _too_large(BodyTooLarge(self._limit_bytes, int(announced)))
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit_bytes:
                raise _too_large(BodyTooLarge(self._limit_bytes))
            return message

        await self._app(scope, bounded, send)


def _too_large(error: BodyTooLarge) -> HTTPException:
    return HTTPException(413, str(error))
