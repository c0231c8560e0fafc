"""The log: everything that happened to every rollout, in Redis Streams.

`Log` is a deployment's log, `RunLog` one run of it; each noun of a run (rollouts, calls, events, queue, completions,
steps, models, pause) is an attribute and a module of that name.
"""

from __future__ import annotations

import asyncio

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError

from leyden.log.address import check_address, greet
from leyden.log.calls import Calls, Closed, Opened
from leyden.log.completions import Completion, Completions
from leyden.log.control import Control, ControlEntry, Signal
from leyden.log.encoding import PayloadInvalid, PayloadRefused, decode, encode
from leyden.log.events import Entry, Events
from leyden.log.index import Index, Location
from leyden.log.keys import RunKeys
from leyden.log.lease import Lease
from leyden.log.memory import ROLLOUTS_MEMORY_SHARE, Memory
from leyden.log.models import Models
from leyden.log.pause import Pause
from leyden.log.queue import Queue, Taken
from leyden.log.replicas import Replicas
from leyden.log.rollouts import Rollouts
from leyden.log.rules import Rules
from leyden.log.runs import RunBegan, RunEnded, Runs, RunSettings
from leyden.log.scripts import Scripts
from leyden.log.server import ServerReport, inspect_server
from leyden.log.steps import StepEntry, Steps

_CONNECTIONS = 64
_MOST_WAITERS = 10_000
_ANSWER_TIMEOUT_SECONDS = 10.0
"""After how long of silence what was asked has failed."""
_CONNECT_TIMEOUT_SECONDS = 3.0


class RunLog:
    """One run's part of the log."""

    def __init__(self, redis: Redis, blocking: Redis, scripts: Scripts, index: Index, memory: Memory, run: str) -> None:
        k = RunKeys(run)
        self.run = run
        self.control = Control(redis, blocking, k)
        self.rollouts = Rollouts(redis, scripts, index, memory, k)
        self.calls = Calls(scripts, k)
        self.events = Events(redis, scripts, k)
        self.queue = Queue(redis, blocking, scripts, k)
        self.completions = Completions(redis, blocking, scripts, index, k)
        self.steps = Steps(redis, blocking, scripts, k)
        self.lease = Lease(scripts, k)
        self.models = Models(redis, scripts, k)
        self.pause = Pause(scripts, self.control, k)
        self.replicas = Replicas(scripts, k)
        self._rules = Rules(redis, scripts, k)

    async def settings(self) -> RunSettings:
        """The rules that hold now. Raises RunMissing."""
        return await self._rules.settings()

    async def set_settings(self, settings: RunSettings) -> None:
        """Change the rules for every call from now on; readers are added by `begin`. Raises RunMissing."""
        await self._rules.set_settings(settings)

    async def remove_reader(self, reader: str) -> bool:
        """Wait no longer for a reader before rollouts are freed; True if the run had it."""
        found = await self._rules.remove_reader(reader)
        await self.completions.free_acknowledged()
        return found


class Log:
    """A deployment's log. Share one in a process: concurrent writes go out together."""

    def __init__(
        self, redis: Redis, blocking: Redis | None = None, *, rollouts_memory_share: float = ROLLOUTS_MEMORY_SHARE
    ) -> None:
        """`rollouts_memory_share`: the part of the server's memory limit above which new rollouts are refused.

        `blocking` is a client for waiting on streams, without read timeout and retries; by default `redis` itself.

        Without retries, since a read for a consumer group that is sent twice gives out twice.
        """
        self._redis = redis
        self._blocking = blocking or redis
        self._scripts = Scripts(redis)
        self._index = Index(redis, self._scripts)
        self.memory = Memory(redis, rollouts_memory_share)
        self._runs: dict[str, RunLog] = {}
        self.runs = Runs(redis, self._blocking, self._scripts)

    @classmethod
    def connect(cls, url: str, *, rollouts_memory_share: float = ROLLOUTS_MEMORY_SHARE) -> Log:
        """A log on the Redis of that URL; connections are made when first used.

        Raises:
            LogAddressInvalid: the URL is none.
        """
        check_address(url)
        # Only what broke is tried again: of a server that is silent, one timeout is enough.
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=2, supported_errors=(ConnectionError,))
        # Commands that answer at once take turns on a few connections; one that waits on a stream has its own.
        answering = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_ANSWER_TIMEOUT_SECONDS,
            socket_timeout=_ANSWER_TIMEOUT_SECONDS,
            socket_connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            retry=retry,
            redis_connect_func=greet,
        )
        return cls(
            Redis.from_pool(answering),
            Redis.from_url(
                url,
                max_connections=_MOST_WAITERS,
                socket_timeout=None,
                socket_connect_timeout=_CONNECT_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
                redis_connect_func=greet,
            ),
            rollouts_memory_share=rollouts_memory_share,
        )

    def run(self, name: str) -> RunLog:
        """The part of one run; costs nothing and may be kept."""
        if name not in self._runs:
            self._runs[name] = RunLog(self._redis, self._blocking, self._scripts, self._index, self.memory, name)
        return self._runs[name]

    async def locate(self, rollout_id: str) -> Location:
        """The run and creation nonce of a rollout id. Raises RolloutMissing."""
        return await self._index.locate(rollout_id)

    async def ping(self) -> None:
        """Return if the server answers and takes writes.

        Raises:
            LogUnavailable, LogFull, ServerUnsupported
        """
        await self._scripts.run("probe", [])

    @classmethod
    async def inspect_at(cls, url: str) -> ServerReport:
        """Look at the server of that URL once, over connections of its own.

        Raises:
            LogAddressInvalid, LogUnavailable, ServerUnsupported
        """
        log = cls.connect(url)
        try:
            return await log.inspect()
        finally:
            await log.close()

    async def inspect(self) -> ServerReport:
        """What server this is, and whether its settings keep the log's promises.

        Raises:
            LogUnavailable, ServerUnsupported
        """
        return await inspect_server(self._redis, self.memory)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(self._scripts.close(), *(client.aclose() for client in {self._redis, self._blocking}))


__all__ = [
    "Closed",
    "Completion",
    "ControlEntry",
    "Entry",
    "Location",
    "Log",
    "Opened",
    "PayloadInvalid",
    "PayloadRefused",
    "RunBegan",
    "RunEnded",
    "RunLog",
    "RunSettings",
    "ServerReport",
    "Signal",
    "StepEntry",
    "Taken",
    "decode",
    "encode",
]
