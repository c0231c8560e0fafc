"""A run's rules and models as this replica knows them.

Invariant: a call is forwarded under rules and models at least as new as its opening in the log, because opening tells
their revision, and an older view is read again first.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from leyden.log import Log
from leyden.log.runs import RunSettings
from leyden.schemas import Model

_MAX_RUNS = 1024


@dataclass(frozen=True, slots=True)
class RunView:
    """One run at one revision."""

    run: str
    revision: int
    settings: RunSettings
    models: tuple[Model, ...]
    read_at: float

    @property
    def holds(self) -> bool:
        return self.settings.when_paused == "hold"

    def upstream_model(self, asked: object) -> str:
        """The model name that a call goes under: the run's, else the agent's own, else the only one there is."""
        if self.settings.model:
            return self.settings.model
        names = {model.model for model in self.models}
        if isinstance(asked, str) and (asked in names or len(names) != 1):
            return asked
        return names.pop() if len(names) == 1 else ""

    def serving(self, name: str) -> list[Model]:
        """The servers of a model."""
        return [model for model in self.models if model.model == name]


class RunViews:
    """Caches a view per run."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._views: dict[str, RunView] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    async def at(self, run: str, revision: int) -> RunView:
        """The run at `revision` or later.

        Raises:
            RunMissing: there is no such run.
        """
        view = self._views.get(run)
        return view if view is not None and view.revision >= revision else await self._read(run, revision, math.inf)

    async def recent(self, run: str, max_age_seconds: float = 1.0) -> RunView:
        """The run as it was at most `max_age_seconds` ago.

        Raises:
            RunMissing: there is no such run.
        """
        view = self._views.get(run)
        fresh = view is not None and time.monotonic() - view.read_at <= max_age_seconds
        return view if view is not None and fresh else await self._read(run, 0, max_age_seconds)

    async def _read(self, run: str, revision: int, max_age_seconds: float) -> RunView:
        async with self._reading.setdefault(run, asyncio.Lock()):
            view = self._views.get(run)
            if view is not None and view.revision >= revision and time.monotonic() - view.read_at <= max_age_seconds:
                return view
            log = self._log.run(run)
            read_at = time.monotonic()
            settings, models = await asyncio.gather(log.settings(), log.models.all())
            if view is not None:
                revision = max(revision, view.revision)
            view = RunView(run, revision, settings, tuple(models), read_at)
            if len(self._views) >= _MAX_RUNS:
                self._views.clear()
            self._views[run] = view
            return view
