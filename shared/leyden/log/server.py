"""Which server the log is kept on, and whether its settings and memory keep what the log promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from leyden.log.errors import ServerUnsupported
from leyden.log.memory import Memory, MemoryUse
from leyden.log.scripts import raise_as_log_error

_OLDEST = {"redis": (7, 0), "valkey": (7, 2)}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A server and what is wrong with its settings or its memory, one sentence each."""

    name: str
    version: str
    appendfsync: str
    memory: MemoryUse
    problems: tuple[str, ...]


async def inspect_server(redis: Redis, memory: Memory) -> ServerReport:
    """Look at a server; settings that it does not let us see are passed over.

    Raises:
        ServerUnsupported: it is older than Redis 7.0 or Valkey 7.2.
        LogUnavailable
    """
    try:
        about: dict[str, Any] = await redis.info("server")
        limits: dict[str, Any] = await redis.info("memory")
        persistence: dict[str, Any] = await redis.info("persistence")
        replication: dict[str, Any] = await redis.info("replication")
    except RedisError as error:
        raise_as_log_error(error)
    # Valkey goes on saying which Redis it can stand in for.
    name = "valkey" if "valkey_version" in about else "redis"
    version = str(about[f"{name}_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST[name]:
        oldest = ".".join(map(str, _OLDEST[name]))
        raise ServerUnsupported(
            f"this is {name.capitalize()} {version}; the log needs {name.capitalize()} {oldest} or later"
        )
    problems = []
    use = await memory.use()
    if use.full:
        problems.append(f"Redis is full, {use}: nothing new is recorded; delete or acknowledge rollouts, or raise it")
    elif not await memory.has_room(0):
        problems.append(str(memory.short()))
    policy = limits.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}: what is on record may be evicted; set it to noeviction")
    if not persistence.get("aof_enabled"):
        problems.append("appendonly is no: a restart loses what was recorded; set it to yes")
    if persistence.get("aof_enabled") and persistence.get("aof_last_write_status", "ok") != "ok":
        problems.append("the append-only file could not be written; see the server's log")
    if replication.get("role") != "master":
        problems.append("this is a replica and takes no writes; name the primary instead")
    fsync = await _setting(redis, "appendfsync")
    if fsync == "no":
        problems.append("appendfsync is no: a machine that goes down loses seconds of the log; set everysec or always")
    return ServerReport(name, version, fsync, use, tuple(problems))


async def _setting(redis: Redis, name: str) -> str:
    try:
        return str((await redis.config_get(name)).get(name, "unknown"))
    except ResponseError:
        return "unknown"
    except RedisError as error:
        raise_as_log_error(error)
