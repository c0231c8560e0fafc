"""How many agents may still be started.

Invariant: slots are handed out in the order in which they were asked for, so that no run starves another.
"""

from __future__ import annotations

import asyncio


class Slots:
    """A controller's slots, shared by all runs that it serves."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._turn = asyncio.Lock()
        self._some = asyncio.Event()
        self._some.set()

    @property
    def free(self) -> int:
        return self._free

    async def reserve(self) -> int:
        """Wait until a slot is free, and reserve all that are."""
        async with self._turn:
            await self._some.wait()
            return self.reserve_now()

    def reserve_now(self) -> int:
        """Reserve all slots that are free, perhaps none."""
        reserved, self._free = self._free, 0
        self._some.clear()
        return reserved

    def release(self, count: int) -> None:
        """Give slots back."""
        if self._free + count > self.total:
            raise ValueError(f"{count} slots given back with {self._free} of {self.total} free")
        self._free += count
        if self._free:
            self._some.set()
