"""Which gateway replicas are alive, by their heartbeats on Redis's clock."""

from __future__ import annotations

from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts

BEAT_SECONDS = 3.0
"""How often a replica with open calls shows that it is alive."""

REPLICA_TTL_SECONDS = 12
"""After how long without a beat a replica's calls are no longer in flight."""

_FORGET_AFTER_SECONDS = 24 * 3600


class Replicas:
    """Heartbeats of the replicas that serve one run."""

    def __init__(self, scripts: Scripts, k: RunKeys) -> None:
        self._scripts = scripts
        self._keys = k

    async def beat(self, replica: str) -> None:
        """Show that a replica is alive; due every `BEAT_SECONDS` while it has calls open."""
        await self._scripts.run("beat", [self._keys.replicas, self._keys.settings], [replica, _FORGET_AFTER_SECONDS])

    async def leave(self, replica: str) -> None:
        """Forget a replica that goes; a call that it still had open is no longer in flight."""
        await self._scripts.run(
            "leave",
            [self._keys.replicas, self._keys.settings, self._keys.control],
            [replica, REPLICA_TTL_SECONDS],
        )
