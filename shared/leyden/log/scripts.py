"""Runs the log's Lua scripts, those of concurrent callers together.

Invariants:
- scripts that are asked for while others are under way are sent as one pipeline when those are back, so a busy
  process pays one round trip and one append-only write for many calls;
- results reach their own callers, an error of one script or of its arguments never another's;
- whoever waits for a result gets one or an error, whatever happens to the connection;
- a script may be sent again after a lost connection: each is idempotent by the ids in its arguments;
- a server that does not know a script (restart, failover, SCRIPT FLUSH) is taught it, and the script runs then.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Sequence
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
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from leyden.log.errors import LogFull, LogUnavailable, ServerUnsupported

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"^--#include (\w+)$", re.MULTILINE)
_MAX_BATCH = 256
_TEACHINGS = 3
"""How often a server may forget a script between being taught it and being asked to run it."""
_UNAVAILABLE = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
    NoPermissionError,
)
_UNAVAILABLE_CODES = ("MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY ", "LOADING", "READONLY", "NOPERM", "NOAUTH")
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
        LogUnavailable: the server can't be reached, refuses our credentials or takes no writes now.
        ServerUnsupported: the server is too old, or holds only a part of a cluster's keys.
        RedisError: anything else, unchanged.
    """
    message = str(error)
    if isinstance(error, OutOfMemoryError) or _FULL.search(message):
        raise LogFull(f"Redis is at its memory limit: {message}") from error
    if isinstance(error, MovedError):
        raise ServerUnsupported(
            f"the log needs one server with all keys, and this one is a part of a cluster: {message}"
        ) from error
    if "compiling script" in message and "'#'" in message:
        raise ServerUnsupported("this Redis is too old: the log needs Redis 7.0 or Valkey 7.2, or later") from error
    if isinstance(error, _UNAVAILABLE) or message.startswith(_UNAVAILABLE_CODES):
        raise LogUnavailable(f"Redis is not available: {message}") from error
    raise error


@dataclass(slots=True)
class _Pending:
    script: Script
    command: tuple[Argument, ...]
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
            LogUnavailable, LogFull, ServerUnsupported: see `raise_as_log_error`.
            UnicodeEncodeError: a key or argument is no valid text.
        """
        what = script(name)
        command = ("EVALSHA", what.sha, len(keys), *map(_sendable, keys), *map(_sendable, args))
        pending = _Pending(what, command, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return await pending.result

    async def _send(self) -> None:
        batch: list[_Pending] = []
        try:
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MAX_BATCH))]
                await self._answer(batch)
        finally:
            # Only if this task was stopped: nobody must wait for what is not under way any more.
            for stranded in (*batch, *self._pending):
                if not stranded.result.done():
                    stranded.result.set_exception(LogUnavailable(f"{stranded.script.name}.lua: the log was closed"))
            self._pending.clear()

    async def _answer(self, batch: list[_Pending]) -> None:
        unknown = self._deliver(batch, await self._execute(batch))
        for left in reversed(range(_TEACHINGS)):
            if not unknown:
                return
            refusal = await self._teach({pending.script for pending in unknown})
            replies = await self._execute(unknown) if refusal is None else [refusal] * len(unknown)
            unknown = self._deliver(unknown, replies, last_try=left == 0)

    async def _execute(self, batch: list[_Pending]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for pending in batch:
            pipeline.execute_command(*pending.command)
        try:
            return await pipeline.execute(raise_on_error=False)
        except RedisError as error:
            return [error] * len(batch)
        except OSError as error:
            return [ConnectionError(str(error))] * len(batch)

    async def _teach(self, scripts: set[Script]) -> RedisError | None:
        try:
            for unknown in scripts:
                await self._redis.script_load(unknown.text)
        except RedisError as error:
            return error
        except OSError as error:
            return ConnectionError(str(error))
        return None

    def _deliver(self, batch: list[_Pending], replies: list[Any], *, last_try: bool = False) -> list[_Pending]:
        """Hand replies to their callers and return those whose script the server does not know."""
        unknown = []
        for pending, reply in zip(batch, replies, strict=True):
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
        if isinstance(error, NoScriptError):
            return LogUnavailable(f"Redis forgets {failed.name}.lua as soon as it is taught it: {error}")
        try:
            raise_as_log_error(error)
        except ResponseError as other:
            return ResponseError(f"{failed.name}.lua: {other}")
        except (LogFull, LogUnavailable, ServerUnsupported, RedisError) as other:
            return other


def _sendable(value: Argument) -> Argument:
    return value.encode() if isinstance(value, str) else value


def text(value: bytes | str | None) -> str:
    """A reply's field as text, an absent one as the empty string."""
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else value
