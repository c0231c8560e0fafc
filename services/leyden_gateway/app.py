"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Depends, FastAPI
from starlette.types import Receive, Scope, Send

from leyden.log.errors import LogFull, LogUnavailable, ServerUnsupported
from leyden.processes import end_with_master
from leyden_gateway import logs
from leyden_gateway.access import admin_only
from leyden_gateway.api import answers, events, health, models, openapi, pause, rollouts, runs
from leyden_gateway.api.bodies import BodyLimit
from leyden_gateway.gateway import Gateway
from leyden_gateway.housekeeping import keep_house
from leyden_gateway.proxy.route import answer, is_model_address
from leyden_gateway.settings import GatewaySettings

_log = structlog.get_logger("leyden.gateway")

_BEGIN_RETRY_SECONDS = 2.0
_COLLECTED_ABOVE = 50_000
"""New containers, beyond those freed, before the youngest are collected."""


class GatewayApp(FastAPI):
    """FastAPI for everything but model calls, whose way is shorter without its middleware."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_model_address(scope):
            await answer(self.state.gateway, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The API's description, model calls included."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.complete(super().openapi())
        return self.openapi_schema


def create_app(settings: GatewaySettings) -> FastAPI:
    """The application; it connects when it starts, and serves 503 while Redis is away."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        gateway = app.state.gateway = Gateway.build(settings)
        if gateway.access.open:
            _log.warning("the key is empty: authentication is off, anyone who reaches this address may do everything")
        tasks = [
            asyncio.create_task(each) for each in (gateway.replica.beat(), _begin(gateway), keep_house(gateway.log))
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.close()

    app = GatewayApp(title="Leyden gateway", lifespan=running, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    answers.install(app, settings.retry_after_seconds)
    admin = [Depends(admin_only)]
    app.include_router(health.router)
    # Agents post events with their own credentials; the other routes of events ask for the admin's themselves.
    app.include_router(events.router, prefix="/api")
    app.include_router(pause.proxy_router, dependencies=admin)
    for router in (rollouts.router, models.router, pause.router, runs.router):
        app.include_router(router, prefix="/api", dependencies=admin)
    return app


def from_environment() -> FastAPI:
    """The application by the settings in the environment; what worker processes import."""
    end_with_master()
    settings = GatewaySettings()
    logs.configure(settings)
    app = create_app(settings)
    _collect_seldom()
    return app


def _collect_seldom() -> None:
    """Let the garbage collector leave alone what is here to stay, and look at the rest less often.

    A parsed answer is hundreds of containers that are freed without it, and would have it run several times a call.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_ABOVE, 10, 10)


async def _begin(gateway: Gateway) -> None:
    """Begin run `default` as soon as Redis can be reached, and say loudly what is wrong with it."""
    while True:
        try:
            await gateway.begin_default_run()
            for problem in (await gateway.log.inspect()).problems:
                _log.error("Redis does not keep what the log promises", problem=problem)
            return
        except (LogUnavailable, LogFull, ServerUnsupported) as error:
            _log.warning("waiting for Redis", error=str(error))
        await asyncio.sleep(_BEGIN_RETRY_SECONDS)
