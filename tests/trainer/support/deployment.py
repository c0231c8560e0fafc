"""A whole deployment on this machine, for tests: gateway, controller and a tiny model server as processes."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.processes import free_port, own_group_until_parent_dies

SUPPORT = Path(__file__).parent
KEY = "a-key-for-tests"
_START_SECONDS = 120


class Deployment:
    """Processes over one Redis; each writes its output to a file of its name in `folder`.

    `server_url` is that of a model server that runs already; without it, a tiny one is started.
    """

    def __init__(self, redis_url: str, model: Path, folder: Path, server_url: str | None = None) -> None:
        self.redis_url = redis_url
        self.model = model
        self.folder = folder
        self.gateway_port, self.server_port = free_port(), free_port()
        self._given_server = server_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, list[str]] = {}

    @property
    def server_url(self) -> str:
        return self._given_server or f"http://127.0.0.1:{self.server_port}"

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    def __enter__(self) -> Self:
        if self._given_server is None:
            self.start("server", [str(SUPPORT / "tiny_server.py"), str(self.model), str(self.server_port)])
        self.start("gateway", ["-m", "leyden_gateway", "--port", str(self.gateway_port)])
        self.start("controller", ["-m", "leyden_controller", "--slots", "4"])
        self.wait_for(f"{self.gateway_url}/healthz", "gateway")
        if self._given_server is None:
            self.wait_for(f"{self.server_url}/health", "server")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "LEYDEN_REDIS_URL": self.redis_url,
            "LEYDEN_KEY": KEY,
            "LEYDEN_GATEWAY_URL": self.gateway_url,
            "LEYDEN_LEASE_SECONDS": "5",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        output = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(
            ["nice", "-n", "5", sys.executable, *arguments],
            env=self.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=own_group_until_parent_dies,
        )
        self._processes[name], self._arguments[name] = process, arguments
        return process

    def kill_and_start(self, name: str) -> None:
        """kill -9 a process and start it again."""
        self._processes[name].kill()
        self._processes[name].wait(timeout=20)
        self.start(name, self._arguments[name])

    def wait_for(self, url: str, name: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._processes[name].poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        raise AssertionError(f"{name} did not start: {(self.folder / f'{name}.log').read_text()[-2000:]}")
