"""What every request of a gateway process stands on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from leyden.auth import Authority
from leyden.log import Log
from leyden.log.errors import RunMissing
from leyden.schemas import DEFAULT_RUN
from leyden_gateway.access import Access
from leyden_gateway.locations import Locations
from leyden_gateway.log_metrics import LogMetrics
from leyden_gateway.proxy.admission import Admission
from leyden_gateway.proxy.endpoints import Health
from leyden_gateway.proxy.recorder import Recorder
from leyden_gateway.proxy.undelivered import Orphans
from leyden_gateway.proxy.upstream import Upstream
from leyden_gateway.replica import Replica
from leyden_gateway.settings import GatewaySettings
from leyden_gateway.views import RunViews
from leyden_gateway.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Gateway:
    """One process's connections and caches."""

    settings: GatewaySettings
    log: Log
    access: Access
    admission: Admission
    locations: Locations
    views: RunViews
    waiting: Waiting
    upstream: Upstream
    health: Health
    replica: Replica
    orphans: Orphans
    recorder: Recorder
    log_metrics: LogMetrics

    @classmethod
    def build(cls, settings: GatewaySettings) -> Gateway:
        """Put a gateway together; needs a running event loop, and connects to nothing yet."""
        log = Log.connect(settings.redis_url, rollouts_memory_share=settings.rollouts_memory_share)
        return cls(
            settings=settings,
            log=log,
            access=Access(Authority(settings.key.get_secret_value())),
            admission=Admission(settings.max_concurrent_calls),
            locations=Locations(log),
            views=RunViews(log),
            waiting=Waiting(log),
            upstream=Upstream(settings),
            health=Health(settings.endpoint_cooldown_seconds),
            replica=Replica(log),
            orphans=Orphans(),
            recorder=Recorder(settings),
            log_metrics=LogMetrics(log),
        )

    async def begin_default_run(self) -> None:
        """Begin run `default` by the settings, unless it has begun before.

        Raises:
            LogUnavailable, LogFull
        """
        try:
            await self.log.run(DEFAULT_RUN).settings()
        except RunMissing:
            await self.log.runs.begin(DEFAULT_RUN, self.settings.default_run)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(self.upstream.close(), self.log.close())
