"""`python -m leyden_gateway`: run the gateway, in one process or several on one port."""

from __future__ import annotations

import os
import sys
import tempfile

import uvicorn
from pydantic import SecretStr, ValidationError
from pydantic_settings import CliApp, SettingsConfigDict

from leyden.concealing import KeyInSight, refuse_keys_on
from leyden.log.address import check_address
from leyden.log.errors import LogAddressInvalid
from leyden.wrong_settings import wrong_settings
from leyden_gateway import logs
from leyden_gateway.settings import GatewaySettings, UnsafeSettings

_KEEP_ALIVE_SECONDS = 120


class CommandLine(GatewaySettings):
    """Run the Leyden gateway. Every flag can also be set as LEYDEN_NAME in the environment."""

    model_config = SettingsConfigDict(
        cli_parse_args=False, cli_kebab_case=True, cli_implicit_flags=True, cli_prog_name="leyden_gateway"
    )


def main(arguments: list[str] | None = None) -> None:
    """Check the settings and serve until SIGTERM."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        refuse_keys_on(arguments)
        settings = CliApp.run(CommandLine, cli_args=arguments)
        settings.check()
        check_address(settings.redis_url)
    except ValidationError as error:
        sys.exit("\n".join(f"leyden gateway: {each}" for each in wrong_settings(CommandLine, error)))
    except (UnsafeSettings, KeyInSight, LogAddressInvalid) as error:
        sys.exit(f"leyden gateway: {error}")
    _export(settings)
    if settings.workers > 1:
        os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(prefix="leyden-metrics-"))
    logs.configure(settings)
    uvicorn.run(
        "leyden_gateway.app:from_environment",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.shutdown_grace_seconds,
    )


def _export(settings: GatewaySettings) -> None:
    """Hand the settings to the worker processes, which read the environment."""
    for name, value in settings.model_dump().items():
        if value is not None:
            os.environ[f"LEYDEN_{name.upper()}"] = (
                value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            )


if __name__ == "__main__":
    main()
