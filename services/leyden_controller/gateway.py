"""Whether agents can reach the gateway, seen from here.

Invariant: the gateway counts as lost only if it was reached before, so an address that only agents can reach, or none,
is never mistaken for an outage.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

_ANSWER_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.5


class Gateway:
    """The gateway at `url`, as agents are told of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        address = urlsplit(url)
        self._host = address.hostname or ""
        self._port = address.port or (443 if address.scheme == "https" else 80)
        self.seen = False

    async def look(self) -> bool:
        """Whether it takes connections now."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return False
        writer.close()
        self.seen = True
        return True

    async def lost(self) -> bool:
        """Whether it took connections before and takes none now."""
        return self.seen and not await self.look()

    async def back(self, hurry: asyncio.Event, seconds: float) -> None:
        """Wait while it is lost, until `hurry` is set, `seconds` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not hurry.is_set() and await self.lost():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(hurry.wait(), _LOOK_AGAIN_SECONDS)
