"""Log lines: one JSON object each, on standard error.

Invariant: no line holds a key or a token, whatever was passed to the logger.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from leyden.concealing import Concealer, password_of
from leyden_gateway.settings import GatewaySettings


def configure(settings: GatewaySettings) -> None:
    """Send this process's log lines, those of its libraries included, through one formatter."""
    conceal = Concealer(settings.key.get_secret_value(), password_of(settings.redis_url))
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    level = logging.getLevelName(settings.log_level.upper())
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(), conceal],
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
                conceal,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
