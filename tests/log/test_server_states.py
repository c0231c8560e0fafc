"""Servers that are full, read-only, locked, away, too old: each is said plainly, and what frees memory goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hiredis
import pytest
from redis.asyncio import Redis

from leyden.log import Log, RunSettings, encode
from leyden.log.errors import LogAddressInvalid, LogFull, LogUnavailable, ServerUnsupported
from leyden.processes import free_port
from leyden.redis_server import RedisServer
from leyden.schemas import Model, NewRollout, State, StatusPatch

USUAL = {
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "min-replicas-to-write": "0",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server whose settings the tests may change."""
    folder = tmp_path_factory.mktemp("changed")
    # A folder in the dump's place makes every dump fail.
    (folder / "dump.rdb").mkdir()
    with RedisServer(folder) as server:
        yield server


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[Redis]:
    """A client that changes settings, which are put back afterwards."""
    client = Redis.from_url(server.url)
    await client.flushall()
    yield client
    await client.execute_command("REPLICAOF", "NO", "ONE")
    for name, value in {
        "maxmemory": "0",
        "min-replicas-to-write": "0",
        "save": "",
        "maxmemory-policy": "noeviction",
    }.items():
        await client.config_set(name, value)
    await client.config_set("appendfsync", "everysec")
    await client.aclose()


@pytest.fixture
async def own(server: RedisServer, admin: Redis) -> AsyncIterator[Log]:
    """A log on that server with a run `r` and a queued rollout `a`."""
    log = Log.connect(server.url)
    await log.runs.begin("r", RunSettings(readers=["trainer"]))
    await log.run("r").rollouts.create(NewRollout(input=None, rollout_id="a"))
    yield log
    await log.close()


async def test_a_full_server_refuses_new_work_and_finishes_the_old(own: Log, admin: Redis):
    run = own.run("r")
    await run.rollouts.create_many(NewRollout(input=None, rollout_id=each) for each in "bc")
    (taken, *_) = await run.queue.take("c", 1)
    await run.calls.open("a", "0", "c1", "gw", admin=True)
    await run.calls.open("a", "0", "c2", "gw", admin=True)
    epoch = await run.lease.acquire("t", 60)
    await admin.config_set("maxmemory", "1")

    for refused in (
        lambda: run.rollouts.create(NewRollout(input=None, rollout_id="d")),
        lambda: run.calls.open("a", "0", "c3", "gw", admin=True),
        lambda: own.ping(),
    ):
        with pytest.raises(LogFull, match="memory limit"):
            await refused()

    await run.rollouts.start("a", "0", entry=taken.entry, consumer="c")
    await run.queue.renew("c", [taken.entry])
    await run.calls.recheck("a", "c1")
    assert not (await run.calls.close("a", "0", "c1", encode({}))).late
    await run.calls.abandon("a", "0", "c2")
    await run.events.append("a", "0", "reward", {"value": 1})
    await run.rollouts.end("a", State.SUCCEEDED, entry=taken.entry, consumer="c")
    await run.rollouts.patch("b", StatusPatch(state=State.FAILED))
    await run.rollouts.delete("c")
    await run.steps.append("batch", {}, epoch=epoch, step_id="1")
    await run.pause.pause()
    await run.models.replace([Model(model="m", endpoint="http://x/v1", version=2)])
    await run.pause.resume()
    await run.replicas.beat("gw")
    await own.runs.begin("r", RunSettings(readers=["trainer"]))
    got = await run.completions.read("trainer", "t", 10, 1)
    assert await run.completions.acknowledge("trainer", got) == 3

    await admin.config_set("maxmemory", "0")
    assert (await run.rollouts.create(NewRollout(input=None, rollout_id="d"))).status.state == State.QUEUING
    await own.ping()


@pytest.mark.parametrize("state", ["read-only", "no replicas", "dump fails"])
async def test_a_server_that_takes_no_writes_is_unavailable_and_then_is_back(own: Log, admin: Redis, state: str):
    run = own.run("r")
    match state:
        case "read-only":
            await admin.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        case "no replicas":
            await admin.config_set("min-replicas-to-write", "1")
        case "dump fails":
            await admin.config_set("save", "3600 1")
            await admin.bgsave()
            while (await admin.info("persistence"))["rdb_bgsave_in_progress"]:
                await asyncio.sleep(0.01)
    for refused in (
        lambda: run.rollouts.create(NewRollout(input=None, rollout_id="b")),
        lambda: run.calls.open("a", "0", "c", "gw", admin=True),
        lambda: run.rollouts.end("a", State.FAILED),
        lambda: run.events.append("a", "0", "reward", {"value": 1}),
        lambda: run.queue.take("c", 1),
        lambda: own.ping(),
    ):
        with pytest.raises(LogUnavailable, match="Redis is not available"):
            await refused()
    if state == "read-only":
        report = await own.inspect()
        assert "this is a replica" in report.problems[0]
        assert (await run.rollouts.get("a")).status.state == State.QUEUING
    await admin.execute_command("REPLICAOF", "NO", "ONE")
    await admin.config_set("min-replicas-to-write", "0")
    await admin.config_set("save", "")
    assert await run.rollouts.end("a", State.FAILED) == 1
    await own.ping()


@pytest.mark.parametrize("host", ["127.0.0.1:{closed}", "no-such-host.invalid:6379"])
async def test_a_server_that_is_not_there_is_named(host: str):
    log = Log.connect(f"redis://:secret@{host.format(closed=free_port())}/0")
    asks = [log.ping(), log.locate("a"), log.runs.begin("r", RunSettings())]
    for outcome in await asyncio.gather(*asks, return_exceptions=True):
        assert isinstance(outcome, LogUnavailable)
        assert host.split(":")[0] in str(outcome)
        assert "secret" not in str(outcome)
    await log.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:secret@h/0?foo=1", "'foo' is not an option of it"),
        ("redis://:secret@h/0?socket_timeout=1", "'socket_timeout' is not an option"),
        ("redis://:secret@h/0?decode_responses=1", "'decode_responses' is not an option"),
        ("redis://:secret@h/0?ssl_cert_reqs=none", "of rediss:// only"),
        ("rediss://:secret@h/0?ssl_cert_reqs=perhaps", "perhaps"),
        ("redis://:secret@h/0?protocol=9", "protocol"),
        ("http://:secret@h/0", "schemes"),
    ],
)
def test_an_address_that_is_none_is_refused_before_anything_connects(url: str, said: str):
    with pytest.raises(LogAddressInvalid, match=said) as refused:
        Log.connect(url)
    assert "secret" not in str(refused.value)


def test_the_options_that_an_address_may_have_are_taken():
    Log.connect("redis://h/0?protocol=2&client_name=me&health_check_interval=30&db=3")
    Log.connect("rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=/ca.pem&ssl_check_hostname=no")
    Log.connect("unix:///run/redis.sock?db=1")


async def test_a_database_that_the_server_does_not_have_is_said(server: RedisServer):
    log = Log.connect(server.url.replace("/0", "/77"))
    with pytest.raises(ServerUnsupported, match="database of the URL"):
        await log.ping()
    await log.close()


async def test_a_password_that_is_missing_or_wrong_is_said_and_the_right_one_works(server: RedisServer, admin: Redis):
    await admin.config_set("requirepass", "secret")
    try:
        for user, said in (("", "wants a password"), (":wrong@", "refuses the user or password")):
            log = Log.connect(server.url.replace("//", f"//{user}"))
            for ask in (log.ping, log.inspect):
                with pytest.raises(LogUnavailable, match=f"{said}.*set LEYDEN_REDIS_URL to redis://:PASSWORD@HOST"):
                    await ask()
            await log.close()
        log = Log.connect(server.url.replace("//", "//:secret@"))
        await log.ping()
        await log.close()
    finally:
        await admin.config_set("requirepass", "")


async def test_a_user_without_the_right_to_write_is_told_so(server: RedisServer, admin: Redis):
    await admin.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
    log = Log.connect(server.url.replace("//", "//reader:pw@"))
    with pytest.raises(LogUnavailable, match="permission"):
        await log.run("r").pause.pause()
    await log.close()


async def test_the_report_names_the_server_and_what_breaks_the_log_s_promises(own: Log, admin: Redis):
    report = await own.inspect()
    assert report.name in ("redis", "valkey")
    assert (report.problems, report.appendfsync) == ((), "everysec")
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    await admin.config_set("appendfsync", "no")
    await admin.config_set("appendonly", "no")
    problems = (await own.inspect()).problems
    await admin.config_set("appendonly", "yes")
    while True:
        # A server does not end before its first append-only file is written.
        writing = await admin.info("persistence")
        if not writing["aof_rewrite_in_progress"] and not writing["aof_rewrite_scheduled"]:
            break
        await asyncio.sleep(0.02)
    assert [each.split(" is ")[0] for each in problems] == ["maxmemory-policy", "appendonly", "appendfsync"]


class OldServer:
    """Answers as Redis 6 does, which knows no `#!lua`; or as a node of a cluster that has other slots."""

    def __init__(self, *, about: str, refusal: bytes) -> None:
        self._about = about.encode()
        self._refusal = refusal

    async def serve(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        reader = hiredis.Reader()
        while chunk := await source.read(65536):
            reader.feed(chunk)
            while (command := reader.gets()) is not False:
                name = command[0].upper()
                if name == b"INFO":
                    target.write(b"$%d\r\n%s\r\n" % (len(self._about), self._about))
                elif name == b"EVALSHA":
                    target.write(b"-NOSCRIPT No matching script. Please use EVAL.\r\n")
                elif name == b"SCRIPT":
                    target.write(self._refusal)
                else:
                    target.write(b"-ERR unknown command\r\n")
        target.close()


OLD = b"-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
PART = b"-MOVED 3999 127.0.0.1:6381\r\n"


@pytest.mark.parametrize(
    ("about", "refusal", "wrong", "words"),
    [
        ("redis_version:6.2.14\r\n", OLD, "this is Redis 6.2.14; the log needs Redis 7.0 or later", "too old"),
        (
            "redis_version:7.2.4\r\nvalkey_version:7.1.0\r\n",
            OLD,
            "this is Valkey 7.1.0",
            "needs Redis 7.0 or Valkey 7.2",
        ),
        ("redis_version:7.2.4\r\n", PART, "", "part of a cluster"),
    ],
)
async def test_a_server_that_is_too_old_or_but_a_part_is_refused_in_words(
    about: str, refusal: bytes, wrong: str, words: str
):
    serving = await asyncio.start_server(OldServer(about=about, refusal=refusal).serve, "127.0.0.1", 0)
    log = Log.connect(f"redis://127.0.0.1:{serving.sockets[0].getsockname()[1]}/0?protocol=2")
    try:
        with pytest.raises(ServerUnsupported, match=words):
            await log.ping()
        if wrong:
            with pytest.raises(ServerUnsupported, match=wrong):
                await log.inspect()
    finally:
        await log.close()
        serving.close()


async def test_who_waits_on_a_stream_is_told_when_the_server_goes(tmp_path: Path):
    server = RedisServer(tmp_path).start()
    log = Log.connect(server.url)
    try:
        await log.runs.begin("r", RunSettings(readers=["trainer"]))
        run = log.run("r")
        waits = [
            asyncio.create_task(each)
            for each in (
                run.queue.wait("0-0", 30),
                run.completions.read("trainer", "t", 1, 30),
                run.control.wait(await run.control.last(), 30),
            )
        ]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(server.kill)
        for outcome in await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 15):
            assert isinstance(outcome, LogUnavailable), outcome
    finally:
        await log.close()
        server.stop()
