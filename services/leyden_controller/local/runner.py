"""Runs agents as processes of this machine, through one supervisor for the whole controller.

Invariants:
- whatever ends the controller, its agents end with it;
- a supervisor that died is replaced at the next start; agents that run do not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import structlog

from leyden_controller.local.connection import KeeperConnection
from leyden_controller.local.ending import ending_of
from leyden_controller.local.order import Order, order_of
from leyden_controller.runner import Cause, Ending, Launch, RunnerFailed, StartRefused

START_SECONDS = 30
"""How long a start may take before it counts as failed: it takes milliseconds on a machine that is not starved."""

log = structlog.get_logger()


class LocalAttempt:
    """One agent's process, seen through its keeper."""

    def __init__(self, connection: KeeperConnection, order: Order, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._order = order

    async def ended(self) -> Ending:
        try:
            answer = await self._connection.receive()
        except EOFError:
            return Ending(Cause.LOST, "the process that kept the agent was killed, and the agent with it")
        finally:
            self._connection.close()
        return ending_of(answer["ended"], self._order.timeout_seconds)

    def kill(self) -> None:
        self._connection.end()


class LocalRunner:
    """Starts agents on this machine; `inherited` is the environment that they get beside their own variables."""

    def __init__(self, inherited: Mapping[str, str] | None = None) -> None:
        self._inherited = dict(os.environ if inherited is None else inherited)
        self._supervisor: Supervisor | None = None
        self._starting = asyncio.Lock()

    async def start(self, launch: Launch) -> LocalAttempt:
        order = order_of(launch, self._inherited)
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self._start(order)
        except TimeoutError:
            raise RunnerFailed(f"the agent's process did not start within {START_SECONDS} s") from None
        except (EOFError, OSError) as error:
            raise RunnerFailed(f"the agent's process could not be started: {error}") from error

    async def open(self) -> None:
        async with self._starting:
            if self._supervisor is None or self._supervisor.gone:
                self._supervisor = await Supervisor.begin()

    async def close(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()

    async def _start(self, order: Order) -> LocalAttempt:
        connection = await self._keeper()
        try:
            await connection.send(asdict(order))
            answer = await connection.receive()
        except BaseException:
            connection.close()
            raise
        match answer:
            case {"started": pid}:
                return LocalAttempt(connection, order, pid)
            case {"refused": reason}:
                connection.close()
                raise StartRefused(reason)
            case _:
                connection.close()
                raise RunnerFailed(f"the agent's process could not be started: {answer['failed']}")

    async def _keeper(self) -> KeeperConnection:
        await self.open()
        assert self._supervisor is not None
        try:
            return await self._supervisor.keeper()
        except (BrokenPipeError, ConnectionResetError):
            # It died and that was not noticed yet.
            self._supervisor.gone = True
            await self.open()
            return await self._supervisor.keeper()


class Supervisor:
    """The warm process that forks a keeper for each agent."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self.gone = False

    @classmethod
    async def begin(cls) -> Supervisor:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", "-X", "utf8"),
                str(Path(__file__).with_name("supervisor.py")),
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        ours.setblocking(False)
        log.info("supervisor started", pid=process.pid)
        return cls(process, ours)

    async def keeper(self) -> KeeperConnection:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return await KeeperConnection.over(ours)

    async def close(self) -> None:
        """Let it and its keepers kill what still runs, and wait until they have."""
        self._control.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), START_SECONDS)
