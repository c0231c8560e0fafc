"""Log lines: one JSON object each, on standard error.

Invariant: no line holds a key or a token, whatever was passed to the logger.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog

from leyden_gateway.settings import GatewaySettings

_TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+|(?i:bearer )\S+")
_PASSWORD = re.compile(r"(rediss?://[^:/@\s]*):[^@\s]+@")


def configure(settings: GatewaySettings) -> None:
    """Send this process's log lines, those of its libraries included, through one formatter."""
    key = settings.key.get_secret_value()

    def conceal(_: Any, __: str, line: dict[str, Any]) -> dict[str, Any]:
        return {name: _concealed(value, key) for name, value in line.items()}

    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
        conceal,
    ]
    level = logging.getLevelName(settings.log_level.upper())
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)


def _concealed(value: Any, key: str) -> Any:
    if not isinstance(value, str):
        return value
    if key:
        value = value.replace(key, "***")
    return _PASSWORD.sub(r"\1:***@", _TOKEN.sub("***", value))
