"""Whether this process lives, is ready, and what it has counted."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from leyden.log.errors import LogFull, LogUnavailable
from leyden_gateway import metrics
from leyden_gateway.access import admin_only
from leyden_gateway.api.scope import TheGateway

router = APIRouter(tags=["health"])

_READY_SECONDS = 3.0
"""How long Redis may take to answer; who asks whether we are ready gives up soon after."""


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(gateway: TheGateway) -> dict[str, str]:
    """The process can serve: Redis answers and takes writes. 503 otherwise.

    A full Redis is no reason to send nobody here: what ends and frees rollouts must get through.
    """
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await gateway.log.ping()
    except TimeoutError:
        raise LogUnavailable(f"Redis is not available: no answer within {_READY_SECONDS:g} s") from None
    except LogFull as full:
        return {"status": "full", "detail": str(full)}
    return {"status": "ready"}


@router.get("/openapi.json", include_in_schema=False, dependencies=[Depends(admin_only)])
async def openapi(request: Request) -> JSONResponse:
    """What the API offers."""
    return JSONResponse(request.app.openapi())


@router.get("/metrics", dependencies=[Depends(admin_only)], response_class=PlainTextResponse)
async def prometheus(gateway: TheGateway) -> Response:
    """What was counted, and what the log says, in Prometheus' text format."""
    text = metrics.report() + await gateway.log_metrics.report()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
