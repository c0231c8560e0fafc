"""What a rollout's `config.local` asks for, as the command line, folder and environment of a process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from leyden.schemas import LocalConfig
from leyden_controller.local.env_map import variables_of
from leyden_controller.runner import Launch, StartRefused

_OURS = "LEYDEN_"


@dataclass(frozen=True, slots=True)
class Order:
    """A process to be started; `env` is its whole environment."""

    argv: list[str]
    cwd: str | None
    env: dict[str, str]
    timeout_seconds: float


def order_of(launch: Launch, inherited: Mapping[str, str]) -> Order:
    """The process that runs this attempt.

    It inherits the controller's environment but for Leyden's own variables, the deployment's key among them.

    Raises:
        StartRefused: the rollout has no local configuration, or one that can't be followed.
    """
    config = launch.rollout.config.local
    if config is None:
        raise StartRefused("config.local is missing, and this controller runs local agents only")
    return Order(
        argv=_argv(config),
        cwd=_existing(config.cwd),
        env={
            **{name: value for name, value in inherited.items() if not name.startswith(_OURS)},
            **launch.variables,
            **variables_of(config.env_map, launch.rollout.input),
        },
        timeout_seconds=launch.rollout.config.timeout_seconds,
    )


def _argv(config: LocalConfig) -> list[str]:
    if config.agent_class:
        # Unbuffered, so that what the agent printed before it was killed can be shown.
        return [sys.executable, "-u", "-m", "leyden_controller.local.agent_class", config.agent_class]
    try:
        argv = shlex.split(config.command) if isinstance(config.command, str) else list(config.command or ())
    except ValueError as error:
        raise StartRefused(f"config.local.command {config.command!r}: {error}") from None
    if not argv:
        raise StartRefused("config.local names neither agent_class nor command")
    return argv


def _existing(cwd: str | None) -> str | None:
    if cwd is not None and not os.path.isdir(cwd):
        raise StartRefused(f"config.local.cwd {cwd!r} is not a folder on this machine")
    return cwd
