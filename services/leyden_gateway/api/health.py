"""Whether this process lives, is ready, and what it has counted."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from leyden_gateway import metrics
from leyden_gateway.access import admin_only
from leyden_gateway.api.scope import TheGateway

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(gateway: TheGateway) -> dict[str, str]:
    """The process can serve: Redis answers. 503 otherwise."""
    await gateway.log.ping()
    return {"status": "ready"}


@router.get("/metrics", dependencies=[Depends(admin_only)], response_class=PlainTextResponse)
async def prometheus() -> Response:
    """What was counted, in Prometheus' text format."""
    return Response(metrics.report(), media_type="text/plain; version=0.0.4; charset=utf-8")
