"""Starts agents' processes, keeps the end of what they print, and leaves none behind.

Run as a script by a bare interpreter (`python -I -S supervisor.py FD`), so it may import nothing but the standard
library. One *supervisor* stays warm for each controller. For every file descriptor that the controller sends over FD it
forks a *keeper*, which talks to the controller over that descriptor: it is sent an order, answers `refused`, `failed`
or `started`, and in the end `ended`.

Invariants:
- a closed connection is the only way to say "stop", so a controller says it by dying, too;
- when the agent ends, its time is over or the connection closes, every process that came from it is killed, those that
  moved to a session of their own included: the keeper is the reaper of all its descendants, and so sees them all;
- when a keeper is killed its agent and all that came from it become children of the supervisor, which kills them;
- output is read as it comes and all but its end is forgotten, so an agent never blocks on it and never fills anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Set

OUTPUT_BYTES = 16 * 1024
"""How much of the end of an agent's output is kept."""

KILL_SECONDS = 10
"""How long killed processes may take to go, before they are given up as stuck in the kernel."""

SHORTAGES = {errno.EAGAIN, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.ETXTBSY}
"""Errors for which no order is to blame."""

_LENGTH = struct.Struct(">I")
_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


class Wakeups:
    """A descriptor that becomes readable when a child has ended. One per process, made by that process."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        return self._read

    def clear(self) -> None:
        while _read_some(self._read):
            pass


class Tail:
    """The last `OUTPUT_BYTES` of a stream."""

    def __init__(self) -> None:
        self.dropped = 0
        self._kept = b""

    def add(self, data: bytes) -> None:
        kept = self._kept + data
        self._kept = kept[-OUTPUT_BYTES:]
        self.dropped += len(kept) - len(self._kept)

    def text(self) -> str:
        return self._kept.decode(errors="replace")


def main() -> None:
    # A signal of these to the whole group is the controller's to answer. Handlers, unlike SIG_IGN, are not inherited
    # by agents.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    # Keepers share the supervisor's memory until they write to it, so they are kept from tidying it up.
    gc.freeze()
    gc.disable()
    connection = supervise(socket.socket(fileno=int(sys.argv[1])))
    if connection is not None:
        keep(connection)
        os._exit(0)


def supervise(controller: socket.socket) -> socket.socket | None:
    """Fork a keeper for each descriptor that comes.

    Returns twice over: in a keeper its connection to the controller; in the supervisor None, once the controller is
    gone and everything that it had started too.
    """
    become_reaper()
    wakeups = Wakeups()
    keepers: set[int] = set()
    poller = _poller(controller, wakeups)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if wakeups.fileno() in ready:
            wakeups.clear()
            keepers -= set(reap())
            # Whatever else is a child of the supervisor lost its keeper.
            kill(children() - keepers)
        if controller.fileno() in ready:
            _, descriptors, _, _ = socket.recv_fds(controller, 1, 1)
            if not descriptors:
                break
            keeper = os.fork()
            if keeper == 0:
                controller.close()
                return socket.socket(fileno=descriptors[0])
            os.close(descriptors[0])
            keepers.add(keeper)
    # Keepers have seen their own connections close, and need a moment to do the same.
    kill_descendants(wakeups, spared=keepers)
    return None


def keep(controller: socket.socket) -> None:
    """Start one agent as ordered, and tell the controller how that went and how the agent ended."""
    become_reaper()
    wakeups = Wakeups()
    order = receive(controller)
    if order is None:
        return
    try:
        agent = start(order["argv"], order["cwd"], order["env"])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        ours = isinstance(error, OSError) and error.errno in SHORTAGES
        send(controller, {"failed" if ours else "refused": refusal(error, order)})
        return
    send(controller, {"started": agent.pid})
    send(controller, {"ended": watch(agent, controller, wakeups, order["timeout_seconds"])})


def start(argv: list[str], cwd: str | None, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """The agent's process, in a session of its own."""
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def refusal(error: Exception, order: dict) -> str:
    """Why an agent could not be started, naming what is at fault."""
    if not isinstance(error, OSError):
        return str(error)
    if order["cwd"] is not None and error.filename == order["cwd"]:
        return f"cwd {order['cwd']!r}: {error.strerror}"
    return f"command {order['argv'][0]!r}: {error.strerror}"


def watch(agent: subprocess.Popen[bytes], controller: socket.socket, wakeups: Wakeups, timeout_seconds: float) -> dict:
    """Wait for the agent's end or bring it about, and leave no process of it."""
    assert agent.stdout is not None
    output, tail = agent.stdout.fileno(), Tail()
    os.set_blocking(output, False)
    poller = _poller(controller, wakeups, output)
    deadline = time.monotonic() + timeout_seconds
    statuses: dict[int, int] = {}
    stopped = timed_out = False
    while agent.pid not in statuses and not stopped and not timed_out:
        ready = {fd for fd, _ in poller.poll(min(max(0, deadline - time.monotonic()), 3600) * 1000)}
        if output in ready and not _drain(output, tail, most=1):
            poller.unregister(output)
        if wakeups.fileno() in ready:
            wakeups.clear()
            statuses |= reap()
        # The controller says nothing after its order, so what is readable is the end of the connection.
        stopped = controller.fileno() in ready and agent.pid not in statuses
        timed_out = time.monotonic() >= deadline and agent.pid not in statuses
    if agent.pid not in statuses:
        with contextlib.suppress(PermissionError):
            os.killpg(agent.pid, signal.SIGKILL)
    statuses |= kill_descendants(wakeups)
    agent.returncode = os.waitstatus_to_exitcode(statuses.get(agent.pid, signal.SIGKILL))
    _drain(output, tail, most=64)
    return {
        "exit_code": agent.returncode if agent.returncode >= 0 else None,
        "signal": -agent.returncode if agent.returncode < 0 else None,
        "stopped": stopped,
        "timed_out": timed_out,
        "output": tail.text(),
        "dropped_bytes": tail.dropped,
    }


def become_reaper() -> None:
    """Let descendants whose parent ends become children of this process, and not of init."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """The children of this process, which has one thread."""
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        return {int(pid) for pid in listing.read().split()}


def kill(processes: set[int]) -> None:
    """Kill children of this process, which keep their numbers until they are reaped, so this can't hit a stranger."""
    for process in processes:
        # One that became another user's (sudo) is out of reach.
        with contextlib.suppress(PermissionError):
            os.kill(process, signal.SIGKILL)


def kill_descendants(wakeups: Wakeups, spared: Set[int] = frozenset()) -> dict[int, int]:
    """Kill generation after generation, all but those `spared` for the time being, until no child is left.

    Returns their wait statuses.
    """
    statuses: dict[int, int] = {}
    poller = _poller(wakeups)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := _living(statuses)) and time.monotonic() < deadline:
        kill(left - spared)
        # Orphans arrive without a signal when their parent was not our child; hence the short limit.
        poller.poll(50)
        wakeups.clear()
    kill(left & spared)
    return statuses


def _living(statuses: dict[int, int]) -> set[int]:
    """The children that are left after reaping those that have ended into `statuses`."""
    statuses |= reap()
    return children()


def reap() -> dict[int, int]:
    """Children that have ended, with their wait statuses."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def send(connection: socket.socket, message: dict) -> None:
    """Send a message; nobody minds when the controller is gone."""
    body = json.dumps(message).encode()
    try:
        connection.sendall(_LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(connection: socket.socket) -> dict | None:
    """The next message, or None when the connection is closed."""
    with connection.makefile("rb") as stream:
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        body = stream.read(length)
        return json.loads(body) if len(body) == length else None


def _poller(*readable: int | socket.socket | Wakeups) -> select.poll:
    poller = select.poll()
    for each in readable:
        poller.register(each, select.POLLIN)
    return poller


def _read_some(fd: int) -> bytes | None:
    """What can be read now: None if there is nothing yet, empty at the end."""
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def _drain(fd: int, tail: Tail, most: int) -> bool:
    """Read up to `most` times; whether more may come."""
    for _ in range(most):
        data = _read_some(fd)
        if data is None:
            return True
        if not data:
            return False
        tail.add(data)
    return True


if __name__ == "__main__":
    main()
