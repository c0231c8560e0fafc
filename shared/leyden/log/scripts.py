"""Runs the log's Lua scripts, those of concurrent callers together.

Invariants:
- scripts that are asked for while others are under way are sent as one pipeline when those are back, so a busy
  process pays one round trip and one append-only write for many calls;
- results reach their own callers, an error of one script never another's;
- a script may be sent again after a lost connection: each is idempotent by the ids in its arguments;
- a server that does not know a script (restart, failover, SCRIPT FLUSH) is taught it, and the script runs then.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from leyden.log.errors import LogFull, LogUnavailable

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"^--#include (\w+)$", re.MULTILINE)
_MAX_BATCH = 256
_UNAVAILABLE = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
)
_UNAVAILABLE_CODES = ("MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY ", "LOADING", "READONLY")
_FULL = re.compile(r"\bOOM\b|command not allowed when used memory")

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text with its parts put in, and the hash that Redis knows it by."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of `NAME.lua`, its `--#include PART` lines replaced by `PART.part.lua`."""
    text = _INCLUDE.sub(
        lambda part: (_FOLDER / f"{part[1]}.part.lua").read_text(), (_FOLDER / f"{name}.lua").read_text()
    )
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


def raise_as_log_error(error: RedisError) -> NoReturn:
    """Raise what a Redis error means for the log.

    Raises:
        LogFull: the server is at its memory limit.
        LogUnavailable: the server can't be reached or takes no writes now.
        RedisError: anything else, unchanged.
    """
    message = str(error)
    if isinstance(error, OutOfMemoryError) or _FULL.search(message):
        raise LogFull(f"Redis is at its memory limit: {message}") from error
    if isinstance(error, _UNAVAILABLE) or message.startswith(_UNAVAILABLE_CODES):
        raise LogUnavailable(f"Redis is not available: {message}") from error
    raise error


@dataclass(slots=True)
class _Pending:
    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]
    result: asyncio.Future[Any]


class Scripts:
    """Runs scripts on one Redis; share one among everything in a process that writes the log."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._pending: deque[_Pending] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run `NAME.lua` and return its reply; bytes stay bytes.

        A caller that is cancelled does not cancel the script.

        Raises:
            LogUnavailable, LogFull: see `raise_as_log_error`.
        """
        pending = _Pending(script(name), keys, args, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await pending.result

    async def run_many(self, name: str, calls: Iterable[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """Run one script for each of `calls` in one pipeline and return the replies in order."""
        return list(await asyncio.gather(*(self.run(name, keys, args) for keys, args in calls)))

    async def _send(self) -> None:
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MAX_BATCH))]
            unknown = self._deliver(batch, await self._execute(batch))
            if unknown:
                taught = await self._teach({pending.script for pending in unknown})
                self._deliver(unknown, taught or await self._execute(unknown), last_try=True)

    async def _execute(self, batch: list[_Pending]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for pending in batch:
            pipeline.execute_command("EVALSHA", pending.script.sha, len(pending.keys), *pending.keys, *pending.args)
        try:
            return await pipeline.execute(raise_on_error=False)
        except RedisError as error:
            return [error] * len(batch)
        except OSError as error:
            return [ConnectionError(str(error))] * len(batch)

    async def _teach(self, scripts: set[Script]) -> list[Any] | None:
        try:
            for unknown in scripts:
                await self._redis.script_load(unknown.text)
        except RedisError as error:
            return [error] * _MAX_BATCH
        return None

    def _deliver(self, batch: list[_Pending], replies: list[Any], *, last_try: bool = False) -> list[_Pending]:
        """Hand replies to their callers and return those whose script the server does not know."""
        unknown = []
        for pending, reply in zip(batch, replies, strict=False):
            if isinstance(reply, NoScriptError) and not last_try:
                unknown.append(pending)
            elif pending.result.done():
                continue
            elif isinstance(reply, RedisError):
                pending.result.set_exception(self._as_log_error(pending.script, reply))
            else:
                pending.result.set_result(reply)
        return unknown

    @staticmethod
    def _as_log_error(failed: Script, error: RedisError) -> Exception:
        try:
            raise_as_log_error(error)
        except ResponseError as other:
            return ResponseError(f"{failed.name}.lua: {other}")
        except (LogFull, LogUnavailable, RedisError) as other:
            return other


def text(value: bytes | str | None) -> str:
    """A reply's field as text, an absent one as the empty string."""
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else value
