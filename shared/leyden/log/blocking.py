"""Waiting on streams. Every wait is cut into slices, so that a server that vanished without a word is noticed."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, RedisError

from leyden.cancellation import heed_cancellation
from leyden.log.errors import LogUnavailable
from leyden.log.scripts import raise_as_log_error, text

SLICE_SECONDS = 20.0
_GRACE_SECONDS = 5.0

Entries = list[tuple[str, dict[bytes, bytes]]]


async def within(seconds: float, blocked: Any) -> Any:
    """Await a blocking command that should return after `seconds` at the latest.

    Raises:
        LogUnavailable: the server did not answer, or the connection broke.
    """
    try:
        async with asyncio.timeout(seconds + _GRACE_SECONDS):
            return await blocked
    except TimeoutError as error:
        raise_as_log_error(ConnectionError(f"no answer within {seconds + _GRACE_SECONDS:g} s: {error}"))
    except RedisError as error:
        raise_as_log_error(error)
    except OSError as error:
        raise_as_log_error(ConnectionError(str(error)))


async def read_stream(
    redis: Redis, stream: str, after: str, *, seconds: float = SLICE_SECONDS, count: int = 1000
) -> Entries:
    """Entries of a stream past the id `after`; waits up to `seconds` for the first, and returns none if none came.

    Raises:
        LogUnavailable: see `within`.
    """
    heed_cancellation()
    block = max(1, int(seconds * 1000))
    try:
        reply = await within(seconds, redis.xread({stream: after}, count=count, block=block))
    except LogUnavailable:
        # The connection may just have gone stale. Reading changes nothing, so it is asked once more on a new one.
        reply = await within(seconds, redis.xread({stream: after}, count=count, block=block))
    return entries_of(reply)


def entries_of(reply: Any) -> Entries:
    """The entries in the reply to a read of one stream; deleted ones have no fields."""
    if not reply:
        return []
    streams = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    # RESP3 wraps the entries of a stream once more.
    rows = streams[0] if streams and streams[0] and isinstance(streams[0], list) else streams
    return [(text(entry), fields or {}) for entry, fields in rows]


async def last_id(redis: Redis, stream: str) -> str:
    """The id of a stream's last entry, `0-0` for one that has none."""
    try:
        newest = await redis.xrevrange(stream, count=1)
    except RedisError as error:
        raise_as_log_error(error)
    return text(newest[0][0]) if newest else "0-0"
