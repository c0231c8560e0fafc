"""Which run a rollout is in, remembered.

Invariant: an id's run can change only when the rollout was freed and created again, and then a script answers that it
is missing where it was; whoever gets that answer forgets the id here and asks again.
"""

from __future__ import annotations

from leyden.log import Location, Log

_MAX_KNOWN = 1 << 15


class Locations:
    """A cache of the log's index."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[str, Location] = {}

    async def locate(self, rollout_id: str) -> Location:
        """Where a rollout is.

        Raises:
            RolloutMissing: the id is not bound to a run.
        """
        location = self._known.get(rollout_id)
        if location is None:
            location = await self._log.locate(rollout_id)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[rollout_id] = location
        return location

    async def moved(self, rollout_id: str, was: Location) -> bool:
        """Forget where a rollout was found missing, and tell whether it is somewhere else now.

        Raises:
            RolloutMissing: the id is no longer bound to a run.
        """
        self.forget(rollout_id)
        return await self.locate(rollout_id) != was

    def forget(self, rollout_id: str) -> None:
        """Ask the index again next time."""
        self._known.pop(rollout_id, None)
