"""The rules of one run, as every replica reads them."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.errors import RunMissing
from leyden.log.keys import RunKeys
from leyden.log.runs import RunSettings
from leyden.log.scripts import Scripts, raise_as_log_error, text


class Rules:
    """Reads and changes a run's settings."""

    def __init__(self, redis: Redis, scripts: Scripts, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = k

    async def settings(self) -> RunSettings:
        """The rules that hold now; its readers are those the run has, whichever the rules were begun with.

        Raises:
            RunMissing: the run has not begun.
        """
        try:
            rules, readers = await self._redis.hmget(  # pyright: ignore[reportGeneralTypeIssues]
                self._keys.settings, ["rules", "readers"]
            )
        except RedisError as error:
            raise_as_log_error(error)
        if rules is None:
            raise RunMissing(self._keys.run)
        return RunSettings.model_validate_json(rules).model_copy(update={"readers": text(readers).split()})

    async def set_settings(self, settings: RunSettings) -> None:
        """Change the rules for every call from now on.

        Raises:
            RunMissing: the run has not begun.
        """
        changed = await self._scripts.run(
            "set_rules", [self._keys.settings, self._keys.control], [settings.model_dump_json()]
        )
        if not changed:
            raise RunMissing(self._keys.run)

    async def remove_reader(self, reader: str) -> bool:
        """Wait no longer for a reader before rollouts are freed; True if the run had it."""
        return bool(await self._scripts.run("remove_reader", [self._keys.settings, self._keys.completions], [reader]))
