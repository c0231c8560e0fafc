"""The controller's own log: one JSON object a line on stderr, with run and rollout ids and never a key."""

from __future__ import annotations

import logging
import sys

import structlog

from leyden.concealing import Concealer


def configure(level: str, *secrets: str) -> None:
    """Log from `level` up, without the secrets."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
            Concealer(*secrets),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
