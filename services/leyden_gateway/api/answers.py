"""Errors of the API as answers: a status, and a `detail` that names the value."""

from __future__ import annotations

from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from leyden.log.errors import LogFull, LogUnavailable
from leyden_gateway import metrics
from leyden_gateway.problems import STATUSES, problem

_log = structlog.get_logger("leyden.gateway.api")

_MAX_SHOWN = 200


class BadValue(ValueError):
    """A value that no schema refuses but that means nothing here."""


def install(app: FastAPI, retry_after_seconds: int) -> None:
    """Let the application answer every error of `STATUSES`, and invalid requests, in the API's shape."""

    async def known(request: Request, error: Exception) -> Response:
        status, message, headers = problem(error, retry_after_seconds)
        if isinstance(error, LogUnavailable | LogFull):
            metrics.LOG_ERRORS.labels(type(error).__name__).inc()
            _log.warning("not answered", path=request.url.path, error=message)
        return _json(status, {"detail": message}, {name.decode(): value.decode() for name, value in headers})

    async def invalid(_: Request, error: Exception) -> Response:
        details = error.errors() if isinstance(error, RequestValidationError) else [{"msg": str(error)}]
        return _json(422, {"detail": [_shown(detail) for detail in details]})

    for kind in STATUSES:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(BadValue, invalid)


def _shown(detail: dict[str, Any]) -> dict[str, Any]:
    """One error of a request, with the value it is about, cut to 200 characters."""
    shown = {key: detail[key] for key in ("type", "loc", "msg") if key in detail}
    reason = detail.get("ctx", {}).get("error")
    if reason is not None and str(reason) not in str(shown["msg"]):
        shown["msg"] = f"{shown['msg']}: {reason}"
    if "input" in detail:
        value = repr(detail["input"])
        shown["input"] = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…"
    return shown


def _json(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body, default=str), status, headers, "application/json")
