"""Runs the log's Lua scripts, those of concurrent callers together.

Invariants:
- scripts that concurrent callers ask for within a turn of the event loop are sent together, so a busy process pays one
  write, and the server one append to its file, for many calls;
- results reach their own callers, an error of one script or of its arguments never another's;
- whoever waits for a result gets one or an error, whatever happens to the connection;
- a script may be sent again after a lost connection: each is idempotent by the ids in its arguments;
- one that a server leaves unanswered is not, so that a server that hangs costs a caller one timeout;
- a server that does not know a script (restart, failover, SCRIPT FLUSH) is taught it, and the script runs then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
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
from leyden.log.pipe import Pipe

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r"^--#include (\w+)$", re.MULTILINE)
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


def raise_as_log_error(error: RedisError, script: str = "") -> NoReturn:
    """Raise what a Redis error means for the log; `script` is what it came from, if from one.

    Raises:
        LogFull: the server is at its memory limit.
        LogUnavailable: the server can't be reached, refuses our credentials or takes no writes now.
        ServerUnsupported: the server is too old, holds only a part of a cluster's keys, or lacks the URL's database.
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
    if message.startswith("DB index"):
        raise ServerUnsupported(f"the server does not have the database of the URL: {message}") from error
    if isinstance(error, AuthenticationError) or message.startswith(("NOAUTH", "WRONGPASS")):
        raise LogUnavailable(_who(message)) from error
    if isinstance(error, _UNAVAILABLE) or message.startswith(_UNAVAILABLE_CODES):
        raise LogUnavailable(f"Redis is not available: {message}") from error
    if script and isinstance(error, ResponseError):
        raise ResponseError(f"{script}.lua: {message}") from error
    raise error


def _who(message: str) -> str:
    """What to do about a server that does not let us in."""
    as_this = "set LEYDEN_REDIS_URL to redis://:PASSWORD@HOST:PORT/0, or redis://USER:PASSWORD@HOST:PORT/0"
    if "invalid" in message.lower():
        return f"Redis refuses the user or password of its URL: {message.rstrip('.')}; {as_this}"
    return f"Redis wants a password: {message.rstrip('.')}; {as_this}"


class Scripts:
    """Runs scripts on one Redis; share one among everything in a process that writes the log."""

    def __init__(self, redis: Redis) -> None:
        self._pipe = Pipe(redis)
        self._retry = redis.get_retry() or Retry(NoBackoff(), 0)

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run `NAME.lua` and return its reply; bytes stay bytes.

        Of a caller that is cancelled it can't be known whether its script ran.

        Raises:
            LogUnavailable, LogFull, ServerUnsupported: see `raise_as_log_error`.
            UnicodeEncodeError: a key or argument is no valid text.
        """
        what = script(name)
        command = ("EVALSHA", what.sha, len(keys), *map(_sendable, keys), *map(_sendable, args))
        try:
            try:
                return await self._pipe.ask(*command)
            except (NoScriptError, ConnectionError):
                return await self._retry.call_with_retry(lambda: self._run_taught(what, command), _take_note)
        except NoScriptError as error:
            raise LogUnavailable(f"Redis forgets {name}.lua as soon as it is taught it: {error}") from error
        except RedisError as error:
            raise_as_log_error(error, script=name)

    async def close(self) -> None:
        """Close the connection; whoever still waits for a result gets `LogUnavailable`."""
        await self._pipe.close()

    async def _run_taught(self, what: Script, command: tuple[Argument, ...]) -> Any:
        """Run a script, teaching it to the server if that does not know it."""
        for _ in range(_TEACHINGS):
            try:
                return await self._pipe.ask(*command)
            except NoScriptError:
                await self._pipe.ask("SCRIPT", "LOAD", what.text)
        return await self._pipe.ask(*command)


async def _take_note(error: Exception) -> None:
    """Between two tries nothing needs to be done."""


def _sendable(value: Argument) -> Argument:
    return value.encode() if isinstance(value, str) else value


def text(value: bytes | str | None) -> str:
    """A reply's field as text, an absent one as the empty string."""
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else value


def storable(words: str) -> str:
    """Words from outside as an argument can hold them: half of a surrogate pair becomes an escape."""
    return words.encode(errors="backslashreplace").decode()
