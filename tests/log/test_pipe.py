"""The one connection that a process's writes share, over a real server and over one that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from leyden.log.pipe import Pipe

_NO_RETRY = Retry(NoBackoff(), 0)
_SHARED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@asynccontextmanager
async def _pipe(redis: Redis) -> AsyncIterator[Pipe]:
    pipe = Pipe(redis)
    yield pipe
    await pipe.close()


@_SHARED
@given(payloads=st.lists(st.binary(max_size=20_000), min_size=1, max_size=60))
async def test_each_caller_gets_the_reply_to_its_own_command(redis, payloads):
    async with _pipe(redis) as pipe:
        assert await asyncio.gather(*(pipe.ask("ECHO", payload) for payload in payloads)) == payloads


async def test_an_error_is_that_callers_alone(redis):
    async with _pipe(redis) as pipe:
        replies = await asyncio.gather(
            pipe.ask("ECHO", b"a"),
            pipe.ask("EVALSHA", "0" * 40, 0),
            pipe.ask("NO-SUCH-COMMAND"),
            pipe.ask("ECHO", b"b"),
            return_exceptions=True,
        )
    assert (replies[0], replies[3]) == (b"a", b"b")
    assert isinstance(replies[1], NoScriptError)
    assert isinstance(replies[2], ResponseError)


async def test_a_caller_that_gives_up_does_not_shift_the_replies_of_others(redis):
    async with _pipe(redis) as pipe:
        await pipe.ask("PING")
        impatient = asyncio.create_task(pipe.ask("ECHO", b"impatient"))
        patient = asyncio.create_task(pipe.ask("ECHO", b"patient"))
        await asyncio.sleep(0)
        impatient.cancel()
        assert await patient == b"patient"
        assert await pipe.ask("ECHO", b"later") == b"later"


async def test_commands_of_one_turn_leave_together(redis):
    async with _pipe(redis) as pipe:
        await pipe.ask("PING")
        before = (await redis.info("stats"))["total_reads_processed"]
        await asyncio.gather(*(pipe.ask("ECHO", b"x") for _ in range(50)))
        assert (await redis.info("stats"))["total_reads_processed"] - before <= 4


async def test_what_is_under_way_fails_when_the_connection_breaks_and_the_next_command_makes_a_new_one(redis):
    async with _pipe(redis) as pipe:
        own_id = await pipe.ask("CLIENT", "ID")
        under_way = [asyncio.create_task(pipe.ask("BLPOP", f"nothing:{number}", 30)) for number in range(3)]
        await asyncio.sleep(0.05)
        await redis.client_kill_filter(_id=str(own_id))
        assert all(
            isinstance(each, ConnectionError) for each in await asyncio.gather(*under_way, return_exceptions=True)
        )
        assert await pipe.ask("ECHO", b"again") == b"again"
        assert await pipe.ask("CLIENT", "ID") != own_id


async def test_a_closed_pipe_fails_what_is_under_way(redis):
    pipe = Pipe(redis)
    await pipe.ask("PING")
    under_way = asyncio.create_task(pipe.ask("BLPOP", "nothing", 30))
    await asyncio.sleep(0.05)
    await pipe.close()
    with pytest.raises(ConnectionError, match="was closed"):
        await under_way


async def test_nobody_listening_is_a_connection_error(unused_tcp_port):
    pipe = Pipe(Redis(port=unused_tcp_port, retry=_NO_RETRY))
    with pytest.raises(ConnectionError):
        await pipe.ask("PING")


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _server(after_login: Behaviour) -> AsyncIterator[int]:
    """A server that accepts whatever a client says first, and then does as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not (said := await reader.read(65536)).count(b"PING"):
            if not said:
                return
            writer.write(b"+OK\r\n" * said.count(b"*"))
        await after_login(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_server_that_falls_silent_is_given_up(redis):
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with _server(silent) as port:
        pipe = Pipe(Redis(port=port, socket_timeout=0.3, protocol=2, retry=_NO_RETRY))
        with pytest.raises(TimeoutError, match=r"0\.3 s"):
            await asyncio.wait_for(pipe.ask("PING"), 5)
        await pipe.close()


async def test_what_is_no_reply_ends_the_connection(redis):
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with _server(babble) as port:
        pipe = Pipe(Redis(port=port, socket_timeout=5, protocol=2, retry=_NO_RETRY))
        with pytest.raises(ConnectionError, match="no reply"):
            await asyncio.wait_for(pipe.ask("PING"), 5)
        await pipe.close()
