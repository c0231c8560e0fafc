"""The model servers of a run, and the weight version each serves."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log.errors import LeaseLost, RunMissing
from leyden.log.keys import RunKeys
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import Model


def registered_as(model: Model) -> str:
    """The field of the registry that holds a server's version."""
    return f"{model.model}\n{model.endpoint}"


class Models:
    """Registry of one run; every change raises the run's revision and is announced on its control stream.

    Every change raises RunMissing if the run has not begun.
    """

    def __init__(self, redis: Redis, scripts: Scripts, k: RunKeys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = k

    async def add(self, models: Iterable[Model]) -> int:
        """Register servers, or bring new versions of registered ones; returns the run's revision."""
        return await self._set("add", models)

    async def replace(self, models: Iterable[Model], *, epoch: int | None = None) -> int:
        """Register these servers and no others, in one step; returns the run's revision.

        Raises:
            LeaseLost: an `epoch` is given, and another trainer holds the lease.
        """
        return await self._set("replace", models, epoch)

    async def clear(self) -> int:
        """Remove every server; returns the run's revision."""
        return await self._set("replace", [])

    async def all(self) -> list[Model]:
        """The registered servers, by model and endpoint."""
        try:
            found = await self._redis.hgetall(self._keys.models)  # pyright: ignore[reportGeneralTypeIssues]
        except RedisError as error:
            raise_as_log_error(error)
        models = []
        for field, version in sorted(found.items()):
            model, endpoint = text(field).rsplit("\n", 1)
            models.append(Model(model=model, endpoint=endpoint, version=orjson.loads(version)))
        return models

    async def _set(self, how: str, models: Iterable[Model], epoch: int | None = None) -> int:
        fields = [each for model in models for each in (registered_as(model), orjson.dumps(model.version).decode())]
        k = self._keys
        outcome, *rest = await self._scripts.run(
            "set_models", [k.models, k.settings, k.control], [how, "" if epoch is None else epoch, *fields]
        )
        match outcome:
            case b"no run":
                raise RunMissing(k.run)
            case b"lost":
                raise LeaseLost(f"run {k.run}: the trainer of epoch {epoch} was replaced by {text(rest[0])}")
        return rest[0]
