"""One trainer a run: a lease on Redis's clock, each holder with a higher epoch than all before."""

from __future__ import annotations

from leyden.log.errors import LeaseHeld, LeaseLost, RunMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, text


class Lease:
    """The trainer's lease of one run."""

    def __init__(self, scripts: Scripts, k: RunKeys) -> None:
        self._scripts = scripts
        self._keys = k

    async def acquire(self, holder: str, ttl_seconds: float) -> int:
        """Take the lease and return its epoch; the present holder may take it again, under a new epoch.

        Raises:
            LeaseHeld: another holder's lease has not run out.
            RunMissing
        """
        outcome, *rest = await self._ask("acquire", holder, ttl_seconds, "")
        match outcome:
            case b"held":
                return rest[0]
            case b"taken":
                raise LeaseHeld(self._keys.run, text(rest[0]), int(rest[1]) / 1000)
            case _:
                raise RunMissing(self._keys.run)

    async def renew(self, holder: str, epoch: int, ttl_seconds: float) -> None:
        """Hold the lease for `ttl_seconds` more.

        Raises:
            LeaseLost: another has taken it.
        """
        await self._keep("renew", holder, epoch, ttl_seconds)

    async def release(self, holder: str, epoch: int) -> None:
        """Give the lease up, so that the next trainer need not wait.

        Raises:
            LeaseLost: another has taken it.
        """
        await self._keep("release", holder, epoch, 0)

    async def _keep(self, verb: str, holder: str, epoch: int, ttl_seconds: float) -> None:
        outcome, *rest = await self._ask(verb, holder, ttl_seconds, epoch)
        if outcome != b"held":
            other = text(rest[0]) if rest else "nobody"
            raise LeaseLost(f"run {self._keys.run}: the lease of {holder}, epoch {epoch}, is now held by {other}")

    async def _ask(self, verb: str, holder: str, ttl_seconds: float, epoch: int | str) -> list:
        return await self._scripts.run(
            "trainer_lease", [self._keys.settings], [verb, holder, int(ttl_seconds * 1000), epoch]
        )
