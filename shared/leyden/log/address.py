"""The log's address: which URLs are one, and who answers there.

Invariants:
- an address that is refused is refused before anything connects, and its text, which may hold a password, is not shown;
- what decides how patient the log is, or how it reads replies, is no option of an address.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.exceptions import ConnectionError, InvalidResponse, RedisError

from leyden.log.errors import LogAddressInvalid

_OPTIONS = frozenset(
    {"client_name", "db", "health_check_interval", "password", "protocol", "socket_keepalive", "username"}
)
_TLS_OPTIONS = frozenset(
    {"ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname"}
    | {"ssl_ciphers", "ssl_exclude_verify_flags", "ssl_include_verify_flags", "ssl_keyfile", "ssl_min_version"}
    | {"ssl_password"}
)


def check_address(url: str) -> None:
    """Refuse a Redis URL that is none; connects to nothing.

    Raises:
        LogAddressInvalid: names what is wrong, an option that there is not by its name.
    """
    try:
        parse_url(url)
        parts = urlsplit(url)
        known = _OPTIONS | _TLS_OPTIONS if parts.scheme == "rediss" else _OPTIONS
        for name in parse_qs(parts.query, keep_blank_values=True):
            if name in _TLS_OPTIONS and name not in known:
                raise LogAddressInvalid(f"{name} is an option of rediss:// only")
            if name not in known:
                raise LogAddressInvalid(f"{name!r} is not an option of it; there are {', '.join(sorted(known))}")
        ConnectionPool.from_url(url).make_connection()
    except LogAddressInvalid:
        raise
    except (ValueError, TypeError, RedisError) as error:
        raise LogAddressInvalid(str(error).partition("\n")[0]) from error


async def greet(connection: Any) -> None:
    """Log in to what a new connection leads to; for redis-py to call.

    Raises:
        ConnectionError: it is no Redis.
        RedisError: the server's own.
    """
    try:
        await connection.on_connect_check_health(check_health=True)
    except InvalidResponse as error:
        where = connection.path if hasattr(connection, "path") else f"{connection.host}:{connection.port}"
        raise ConnectionError(f"what answers at {where} is no Redis ({error})") from error
