"""`leyden up`: Redis, a gateway and a controller on this machine, until Ctrl-C or SIGTERM.

Invariants:
- the services are stopped in the order in which they need each other, Redis last;
- one that dies is started again, a few times a minute at most; its log loses nothing meanwhile;
- none outlives this command, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import IO, Annotated

import httpx
import typer

from leyden import deployment
from leyden.cli.console import DataDir, err, out, plain_errors
from leyden.log import Log
from leyden.processes import end, free_port, own_group_until_parent_dies
from leyden.redis_server import RedisNotStarted, RedisServer

_READY_SECONDS = 60.0
_STOP_SECONDS = 90.0
_LOOK_AT_GATEWAY_SECONDS = 0.1
_LOOK_AT_CHILDREN_SECONDS = 5.0
_MAX_DEATHS_PER_MINUTE = 5


class AppendFsync(StrEnum):
    """Redis's own setting: what each survives is in docs/architecture.md."""

    ALWAYS = "always"
    EVERYSEC = "everysec"


class Stopping:
    """Whether this command was asked to stop, and a wait that a child's death ends too."""

    def __init__(self) -> None:
        self.asked = False
        self._woken = Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: self._woken.set())

    def not_within(self, seconds: float) -> bool:
        """Wait until a child has died, `seconds` at most; False if asked to stop."""
        self._woken.wait(seconds)
        self._woken.clear()
        return not self.asked

    def _ask(self, *_: object) -> None:
        self.asked = True
        self._woken.set()


class ServiceFailed(RuntimeError):
    """A service did not come up or keeps dying; the message holds its last lines."""


@dataclass
class Service:
    """One service as a child process, its output in a file."""

    module: str
    environment: dict[str, str]
    log: Path
    _process: subprocess.Popen[bytes] | None = None
    _output: IO[bytes] | None = None
    _deaths: deque[float] = field(default_factory=deque)

    def start(self) -> None:
        """Start the process; its output is appended to the log file."""
        self._output = self._output or self.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=own_group_until_parent_dies,
        )

    def revive(self) -> bool:
        """Start the process again if it has died; True if it had.

        Raises:
            ServiceFailed: it dies too often.
        """
        if self._process is None or self._process.poll() is None:
            return False
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - 60:
            self._deaths.popleft()
        if len(self._deaths) > _MAX_DEATHS_PER_MINUTE:
            raise ServiceFailed(self.last_words(f"{self.module} has died {len(self._deaths)} times within a minute"))
        self.start()
        return True

    @property
    def dead(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Ask the process to end and wait; kill it if it does not."""
        if self._process is not None:
            end(self._process, _STOP_SECONDS)
        if self._output is not None:
            self._output.close()

    def last_words(self, what: str) -> str:
        """`what`, with the last lines of the service's log."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"{what}; its log, {self.log}, ends with:", *lines])


def up(
    data_dir: DataDir = deployment.DEFAULT_FOLDER,
    host: Annotated[str, typer.Option(envvar="LEYDEN_HOST", help="Address the gateway listens on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="LEYDEN_PORT", min=0, max=65535, help="Its port; 0 chooses a free one.")
    ] = 8080,
    slots: Annotated[int, typer.Option(envvar="LEYDEN_SLOTS", min=1, help="Agents that may run at a time.")] = 16,
    workers: Annotated[int, typer.Option(envvar="LEYDEN_WORKERS", min=1, help="Gateway processes.")] = 1,
    model: Annotated[str | None, typer.Option(envvar="LEYDEN_MODEL", help="Model name of run `default`.")] = None,
    appendfsync: Annotated[
        AppendFsync, typer.Option(envvar="LEYDEN_REDIS_APPENDFSYNC", help="When Redis has the disk write.")
    ] = AppendFsync.ALWAYS,
) -> None:
    """Bring up everything that agents need on one machine: Redis, a gateway, a controller."""
    stopping = Stopping()
    with plain_errors():
        try:
            _run(data_dir, host, port or free_port(), slots, workers, model, appendfsync, stopping)
        except (RedisNotStarted, ServiceFailed) as error:
            err.print(f"[bold red]error:[/] {error}", highlight=False)
            raise typer.Exit(1) from error


def _run(
    data_dir: Path,
    host: str,
    port: int,
    slots: int,
    workers: int,
    model: str | None,
    appendfsync: AppendFsync,
    stopping: Stopping,
) -> None:
    _must_be_free(host, port)
    _make_folder(data_dir)
    key = deployment.key(data_dir)
    given = os.environ.get("LEYDEN_REDIS_URL")
    if given:
        _must_keep_a_log(given)
    redis = None if given else RedisServer(data_dir / "redis", appendfsync=appendfsync).start()
    try:
        redis_url = given or (redis.url if redis else "")
        reached_at = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        gateway_url = f"http://{reached_at}:{port}"
        deployment.Deployment(redis_url=redis_url, gateway_url=gateway_url, key=key).save(data_dir)
        environment = {
            **os.environ,
            "LEYDEN_REDIS_URL": redis_url,
            "LEYDEN_GATEWAY_URL": gateway_url,
            "LEYDEN_KEY": key,
            "LEYDEN_HOST": host,
            "LEYDEN_PORT": str(port),
            "LEYDEN_SLOTS": str(slots),
            "LEYDEN_WORKERS": str(workers),
            "PYTHONUNBUFFERED": "1",
        }
        if model:
            environment["LEYDEN_MODEL"] = model
        services = [
            Service("leyden_gateway", environment, data_dir / "gateway.log"),
            Service("leyden_controller", environment, data_dir / "controller.log"),
        ]
        _serve(services, redis, gateway_url, data_dir, stopping)
    finally:
        if redis is not None:
            redis.stop()


def _make_folder(data_dir: Path) -> None:
    """Raises ServiceFailed if something else stands in its way."""
    for path in (data_dir, *data_dir.parents):
        if path.exists():
            if not path.is_dir():
                raise ServiceFailed(f"--data-dir is {data_dir}, but {path} is a file; name a folder")
            break
    data_dir.mkdir(parents=True, exist_ok=True)


def _must_be_free(host: str, port: int) -> None:
    """Raises ServiceFailed if the gateway could not listen there: another's would be taken for ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        raise ServiceFailed(f"the gateway can't listen on {host}:{port}: {error}; choose another --port") from error


def _must_keep_a_log(redis_url: str) -> None:
    """Say what is wrong with the Redis that we are given, or raise what makes it useless, before anything starts."""
    for problem in asyncio.run(Log.inspect_at(redis_url)).problems:
        err.print(f"[bold yellow]warning:[/] {problem}", highlight=False)


def _serve(
    services: list[Service], redis: RedisServer | None, gateway_url: str, data_dir: Path, stopping: Stopping
) -> None:
    try:
        for service in services:
            service.start()
        _wait_until_ready(services, gateway_url, stopping)
        if not stopping.asked:
            out.print(f"[bold]Leyden is up[/]: gateway {gateway_url}, data and key in {data_dir}", highlight=False)
        while stopping.not_within(_LOOK_AT_CHILDREN_SECONDS):
            if redis is not None and redis.revive():
                err.print("Redis had died and was started again", highlight=False)
            for service in services:
                if service.revive():
                    err.print(f"{service.module} had died and was started again", highlight=False)
    finally:
        for service in reversed(services):
            service.stop()


def _wait_until_ready(services: list[Service], gateway_url: str, stopping: Stopping) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while stopping.not_within(_LOOK_AT_GATEWAY_SECONDS):
        for service in services:
            if service.dead:
                raise ServiceFailed(service.last_words(f"{service.module} ended while it was starting"))
        try:
            if httpx.get(f"{gateway_url}/readyz", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise ServiceFailed(services[0].last_words(f"{gateway_url} was not ready within {_READY_SECONDS:g} s"))
