"""Runs as they begin and end, and the rules that each sets for its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from redis.asyncio import Redis
from redis.exceptions import RedisError

from leyden.log import keys
from leyden.log.blocking import read_stream
from leyden.log.errors import RunMissing
from leyden.log.scripts import Scripts, raise_as_log_error, text
from leyden.schemas import Name


class RunSettings(BaseModel):
    """What holds for every rollout and call of a run."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """Name that calls are sent upstream under; None leaves the agent's own."""
    train_temperature: float = Field(default=1.0, ge=0)
    val_temperature: float = Field(default=0.7, ge=0)
    include_log_probs: bool = True
    return_routed_experts: bool = False
    when_paused: Literal["refuse", "hold"] = "refuse"
    hold_timeout_seconds: float = Field(default=3600, gt=0)
    readers: list[Name] = Field(default_factory=list)
    retention_seconds: float = Field(default=7 * 24 * 3600, gt=0)
    """How long finished rollouts of a run without readers are kept."""
    agents_may_reward: bool = True
    """Whether the credentials that agents are given allow them to report rewards."""
    max_calls_per_attempt: int | None = Field(default=None, ge=1)
    max_tokens_per_attempt: int | None = Field(default=None, ge=1)
    """Prompt and sampled tokens of an attempt's calls together; the call that reaches the limit is its last."""


@dataclass(frozen=True, slots=True)
class RunBegan:
    """A run has begun, or begun again."""

    run: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run takes no more rollouts."""

    run: str


class Runs:
    """The runs of a deployment."""

    def __init__(self, redis: Redis, blocking: Redis, scripts: Scripts) -> None:
        self._redis = redis
        self._blocking = blocking
        self._scripts = scripts

    async def begin(self, run: str, settings: RunSettings) -> bool:
        """Begin a run, or bring new rules and further readers to one that has begun; True if it is new."""
        k = keys.RunKeys(run)
        new = await self._scripts.run(
            "begin_run",
            [k.settings, k.queue, k.completions, k.control],
            [settings.model_dump_json(), *settings.readers],
        )
        await self._announce("began", run)
        return bool(new)

    async def end(self, run: str) -> None:
        """Let a run take no more rollouts; what it holds stays readable.

        Raises:
            RunMissing: no such run has begun.
        """
        if not await self._scripts.run("end_run", [keys.RunKeys(run).settings]):
            raise RunMissing(run)
        await self._announce("ended", run)

    async def names(self) -> list[str]:
        """The runs that have begun and not ended, by first beginning."""
        live: dict[str, None] = {}
        try:
            entries: Any = await self._redis.xrange(keys.RUNS)
        except RedisError as error:
            raise_as_log_error(error)
        for _, fields in entries:
            match self._change(fields):
                case RunBegan(run):
                    live[run] = None
                case RunEnded(run):
                    live.pop(run, None)
        return list(live)

    async def follow(self) -> AsyncIterator[RunBegan | RunEnded]:
        """Every beginning and end of a run, from the first on, and then as they happen; never stops by itself."""
        after = "0-0"
        while True:
            for entry, fields in await read_stream(self._blocking, keys.RUNS, after):
                after = entry
                yield self._change(fields)

    async def _announce(self, kind: str, run: str) -> None:
        await self._scripts.run("announce_run", [keys.RUNS], [kind, run])

    @staticmethod
    def _change(fields: dict[bytes, bytes]) -> RunBegan | RunEnded:
        run = text(fields[b"run"])
        return RunBegan(run) if fields[b"kind"] == b"began" else RunEnded(run)
