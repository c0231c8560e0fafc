"""The HTTP client for model servers, against servers that say byte by byte what a test wants."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from leyden_gateway.proxy.connections import (
    Address,
    Connection,
    Connections,
    UpstreamFailed,
    UpstreamSilent,
    UpstreamUnreachable,
)

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_LONG = b"x" * (1 << 22)

ANSWERS = {
    "counted": (_OK + b"content-length: 5\r\n\r\nhello", b"hello"),
    "chunked": (_OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;why=not\r\nlo\r\n0\r\n\r\n", b"hello"),
    "with a trailer": (
        _OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\ncontent-type: a/b\r\n\r\n",
        b"hello",
    ),
    "empty": (_OK + b"content-length: 0\r\n\r\n", b""),
    "after a 100 and a 103": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\ncontent-length: 9\r\n\r\n"
        + _OK
        + b"content-length: 5\r\n\r\nhello",
        b"hello",
    ),
}
"""Answers after which a connection can be used again, and their bodies."""


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Both loops: uvloop serves, asyncio's runs the other tests."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Server:
    """Answers each request by the next of `says`, the last one again and again; a None closes without a word."""

    def __init__(self, *says: bytes | None, close: bool = False, piece: int = 1 << 30) -> None:
        self.says = list(says)
        self.close = close
        self.piece = piece
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while head := await _head(reader):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
                if said is None:
                    break
                for start in range(0, len(said), self.piece):
                    writer.write(said[start : start + self.piece])
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.close:
                    break
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.close()


@asynccontextmanager
async def connecting(**settings: float) -> AsyncIterator[Connections]:
    given = {"limit": 8, "connect_timeout_seconds": 1.0, "idle_seconds": 5.0} | settings
    connections = Connections(**given)  # pyright: ignore[reportArgumentType]
    yield connections
    connections.close()


async def said(connections: Connections, server: Server, body: bytes = b"{}") -> tuple[int, bytes]:
    """The status and body of one answer."""
    answer = await connections.post(Address.of(server.url, "chat/completions"), body)
    try:
        return answer.status, await answer.read(1 << 30)
    finally:
        connections.release(answer)


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("piece", [1, 7, 1 << 30])
async def test_an_answer_is_read_however_it_is_framed_and_cut_and_its_connection_is_kept(kind, piece):
    raw, body = ANSWERS[kind]
    async with serving(Server(raw, piece=piece)) as server, connecting() as connections:
        for _ in range(3):
            assert await said(connections, server) == (200, body)
        assert server.connections == 1


@given(bodies=st.lists(st.lists(st.binary(min_size=1, max_size=300), max_size=6), max_size=4), data=st.data())
def test_chunks_come_out_as_they_went_in_however_the_network_cuts_them(bodies, data):
    async def fed() -> None:
        connection = Connection(Address.of("http://host/v1", "chat"))
        for parts in bodies:
            raw = _OK + b"transfer-encoding: chunked\r\n\r\n"
            raw += b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            asking = asyncio.ensure_future(connection.ask(connection.address, b""))
            await asyncio.sleep(0)
            while raw:
                cut = data.draw(st.integers(1, len(raw)))
                connection.data_received(raw[:cut])
                raw = raw[cut:]
            await asking
            assert await connection.read(1 << 20) == b"".join(parts)
            assert connection.complete

    asyncio.run(fed())


async def test_a_request_is_a_post_with_its_length_and_whose_credentials_are_the_urls():
    async with serving(Server(ANSWERS["counted"][0])) as server, connecting() as connections:
        server.url = server.url.replace("//", "//user:p%40ss@") + "/"
        await said(connections, server, b'{"a": 1}')
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    assert line == b"POST /v1/chat/completions HTTP/1.1"
    assert body == b'{"a": 1}'
    assert dict(header.split(b": ") for header in headers) == {
        b"host": server.url.partition("@")[2].partition("/")[0].encode(),
        b"authorization": b"Basic dXNlcjpwQHNz",
        b"accept": b"*/*",
        b"accept-encoding": b"identity",
        b"content-type": b"application/json",
        b"content-length": b"8",
    }


@pytest.mark.parametrize("endpoint", ["ftp://host/v1", "http:///v1", "http://host:port/v1", "nonsense"])
async def test_what_is_no_address_is_refused(endpoint):
    with pytest.raises(ValueError, match=r"."):
        Address.of(endpoint, "chat/completions")


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("http://[::1]:81/v1", "::1", 81), ("http://bücher.de/v1", "xn--bcher-kva.de", 80), ("https://host", "host", 443)],
)
async def test_addresses_of_other_shapes(endpoint, host, port):
    assert Address.of(endpoint, "x").origin[:2] == (host, port)


async def test_without_a_length_the_answer_ends_when_the_server_closes():
    async with serving(Server(_OK + b"\r\nhello", close=True)) as server, connecting() as connections:
        assert await said(connections, server) == (200, b"hello")
        assert await said(connections, server) == (200, b"hello")
        assert server.connections == 2


async def test_a_server_that_says_it_will_close_is_asked_over_a_new_connection():
    raw = _OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello"
    async with serving(Server(raw)) as server, connecting() as connections:
        assert [await said(connections, server) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 2


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (None, "closed the connection"),
        (_OK, "closed the connection"),
        (_OK + b"content-length: 6\r\n\r\nhello", "closed the connection"),
        (_OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", "closed the connection"),
        (_OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\n", "no HTTP answer"),
        (_OK + b"content-length: many\r\n\r\n", "no HTTP answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP answer"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx", "no HTTP answer|closed"),
        (b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * (1 << 17), "the head of the answer has more than"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error_that_names_the_endpoint(raw, fault):
    async with serving(Server(raw, close=True)) as server, connecting() as connections:
        with pytest.raises(UpstreamUnreachable, match=fault) as raised:
            await said(connections, server)
        assert server.url in str(raised.value)


async def test_a_kept_connection_that_the_server_has_closed_is_not_used():
    async with serving(Server(ANSWERS["counted"][0])) as server, connecting() as connections:
        await said(connections, server)
        server.writers[0].close()
        await asyncio.sleep(0.05)
        assert await said(connections, server) == (200, b"hello")
        assert server.connections == 2


@pytest.mark.parametrize("extra", [b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"junk"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_a_server_says_unasked_is_nobodys_answer(extra, at_once):
    raw = ANSWERS["counted"][0]
    async with serving(Server(raw + extra if at_once else raw, raw)) as server, connecting() as connections:
        assert await said(connections, server) == (200, b"hello")
        if not at_once:
            server.writers[0].write(extra)
            await asyncio.sleep(0.05)
        assert await said(connections, server) == (200, b"hello")
        assert server.connections == 2


async def test_connections_that_were_idle_for_too_long_are_closed_and_not_used():
    async with serving(Server(ANSWERS["counted"][0])) as server, connecting(idle_seconds=0.1) as connections:
        await said(connections, server)
        await asyncio.wait_for(server.ended.wait(), 5)
        await said(connections, server)
        assert server.connections == 2


async def test_an_answer_let_go_before_its_end_closes_its_connection():
    async with serving(Server(_OK + b"content-length: 9\r\n\r\nhello")) as server, connecting() as connections:
        answer = await connections.post(Address.of(server.url, "chat"), b"{}")
        assert await answer.some() == b"hello"
        connections.release(answer)
        await asyncio.wait_for(server.ended.wait(), 5)


@pytest.mark.parametrize("said_before", [b"", _OK + b"content-length: 9\r\n\r\nhello"])
async def test_a_cancelled_caller_leaves_no_connection_and_no_slot_behind(said_before):
    async with serving(Server(said_before, ANSWERS["counted"][0])) as server, connecting(limit=1) as connections:
        asking = asyncio.create_task(said(connections, server))
        while not server.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(server.ended.wait(), 5)
        assert await asyncio.wait_for(said(connections, server), 5) == (200, b"hello")


async def test_no_more_requests_are_under_way_than_the_limit_says():
    async with serving(Server(b"", ANSWERS["counted"][0])) as server, connecting(limit=1) as connections:
        first = asyncio.create_task(said(connections, server))
        while not server.requests:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(said(connections, server))
        await asyncio.sleep(0.05)
        assert len(server.requests) == 1
        server.writers[0].close()
        with pytest.raises(UpstreamFailed):
            await first
        assert await asyncio.wait_for(second, 5) == (200, b"hello")


async def test_nobody_listening_is_unreachable():
    async with serving(Server(None)) as server:
        pass
    async with connecting() as connections:
        for _ in range(3):  # none of which keeps a slot
            with pytest.raises(UpstreamUnreachable, match=server.url):
                await said(connections, server)


async def test_a_server_that_never_finishes_the_handshake_is_silent():
    async with serving(Server(b"")) as server, connecting(connect_timeout_seconds=0.2) as connections:
        server.url = server.url.replace("http:", "https:")
        with pytest.raises(UpstreamSilent, match="no connection in"):
            await said(connections, server)


@pytest.mark.parametrize("framing", [b"content-length: %d\r\n\r\n" % len(_LONG), b"connection: close\r\n\r\n"])
async def test_an_answer_larger_than_the_limit_is_refused(framing):
    async with serving(Server(_OK + framing + _LONG, close=True)) as server, connecting() as connections:
        answer = await connections.post(Address.of(server.url, "chat"), b"{}")
        with pytest.raises(ValueError, match="larger than 1000 bytes"):
            await answer.read(1000)
        connections.release(answer)
        await asyncio.wait_for(server.ended.wait(), 5)


async def test_who_reads_slowly_holds_the_server_up_and_gets_everything():
    long = _LONG * 8
    raw = _OK + b"content-length: %d\r\n\r\n" % len(long) + long
    async with serving(Server(raw, ANSWERS["counted"][0])) as server, connecting() as connections:
        answer = await connections.post(Address.of(server.url, "chat"), b"{}")
        await asyncio.sleep(0.3)
        most, size = 0, 0
        while part := await answer.some():
            most, size = max(most, len(part)), size + len(part)
        connections.release(answer)
        assert size == len(long)
        assert most < len(long) // 4
        assert await said(connections, server) == (200, b"hello")
        assert server.connections == 1


async def test_calls_at_once_have_connections_of_their_own_and_get_their_own_answers():
    raws = [_OK + b"content-length: 1\r\n\r\n%d" % number for number in range(8)]
    async with serving(Server(*raws)) as server, connecting() as connections:
        found = await asyncio.gather(*(said(connections, server) for _ in range(8)))
        assert sorted(body for _, body in found) == [b"%d" % number for number in range(8)]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key in the same file."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", file, "-out", f"{file}.crt"], check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


async def test_tls_is_spoken_with_those_whose_certificate_is_trusted(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with serving(Server(ANSWERS["chunked"][0]), context) as server:
        trusting = Connections(
            limit=1,
            connect_timeout_seconds=5,
            idle_seconds=5,
            tls=lambda: ssl.create_default_context(cafile=str(certificate)),
        )
        assert [await said(trusting, server) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == 1
        trusting.close()
        async with connecting() as wary:
            with pytest.raises(UpstreamUnreachable, match="certificate"):
                await said(wary, server)
