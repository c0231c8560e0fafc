"""`python -m leyden_controller`: run a controller until SIGTERM or SIGINT; a second one lets no agent finish.

Exits with 0 if it was told to stop, 1 if the log stayed away for too long, 2 if its settings are wrong.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys

import structlog
import uvloop
from pydantic import ValidationError
from pydantic_settings import CliApp

from leyden.auth import Authority
from leyden.concealing import KeyInSight, password_of, refuse_keys_on
from leyden.log import Log
from leyden.log.address import check_address
from leyden.log.errors import LogAddressInvalid, LogFull, LogUnavailable
from leyden.wrong_settings import wrong_settings
from leyden_controller import logs
from leyden_controller.controller import Controller
from leyden_controller.gateway import Gateway
from leyden_controller.life import Means
from leyden_controller.local.runner import LocalRunner
from leyden_controller.metrics import Metrics
from leyden_controller.patience import Patience
from leyden_controller.settings import ControllerSettings

log = structlog.get_logger()


def main() -> int:
    try:
        refuse_keys_on(sys.argv[1:])
        settings = CliApp.run(ControllerSettings)
        check_address(settings.redis_url)
    except (KeyInSight, LogAddressInvalid) as error:
        sys.stderr.write(f"leyden controller: {error}\n")
        return 2
    except ValidationError as error:
        for each in wrong_settings(ControllerSettings, error):
            sys.stderr.write(f"leyden controller: {each}\n")
        return 2
    logs.configure(settings.log_level, settings.key.get_secret_value(), password_of(settings.redis_url))
    return uvloop.run(serve(settings))


async def serve(settings: ControllerSettings) -> int:
    """Run a controller with these settings until a signal; the exit code."""
    metrics = Metrics()
    if settings.metrics_port is not None:
        metrics.serve(settings.metrics_host, settings.metrics_port)
    means = Means(
        log=Log.connect(settings.redis_url),
        consumer=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        runner=LocalRunner(),
        authority=Authority(settings.key.get_secret_value()),
        gateway=Gateway(settings.gateway_url),
        patience=Patience(settings.redis_deadline_seconds),
        metrics=metrics,
    )
    controller = Controller(
        means,
        slots=settings.slots,
        lease_seconds=settings.lease_seconds,
        shutdown_grace_seconds=settings.shutdown_grace_seconds,
        runs=settings.runs,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, controller.stop)
    log.info("controller started", consumer=means.consumer, slots=settings.slots, runs=settings.runs or "all")
    gave_up = False
    try:
        await controller.run()
    except* (LogUnavailable, LogFull) as group:
        gave_up = True
        log.error("controller gave up", error=str(group.exceptions[0]))
    finally:
        await means.log.close()
    log.info("controller stopped", consumer=means.consumer)
    return int(gave_up)


if __name__ == "__main__":
    sys.exit(main())
