"""What goes wrong, as HTTP: one table for the API and for model calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from leyden.auth import CredentialRefused
from leyden.log.encoding import PayloadInvalid
from leyden.log.errors import (
    AttemptFenced,
    BudgetSpent,
    CallLost,
    IdTaken,
    InputDiffers,
    LeaseHeld,
    LeaseLost,
    LogFull,
    LogUnavailable,
    RolloutFinished,
    RolloutMissing,
    RunMissing,
    RunPaused,
    TransitionRefused,
)
from leyden_gateway.access import Forbidden
from leyden_gateway.protocols import AgentError
from leyden_gateway.proxy.admission import TooManyCalls
from leyden_gateway.proxy.client import BodyTooLarge


class NoServers(LookupError):
    """No server of the model is registered."""

    def __init__(self, model: str) -> None:
        super().__init__(f"No servers available for model '{model}'")


class NoSuchRoute(LookupError):
    """The address means nothing; the message names the part that does not."""


class MethodNotAllowed(LookupError):
    """The address exists, but not for this verb."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"Method Not Allowed: {method} {path[:200]}")


_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

STATUSES: Mapping[type[Exception], int] = {
    CredentialRefused: 401,
    Forbidden: 403,
    BudgetSpent: 403,
    RolloutMissing: 404,
    RunMissing: 404,
    NoSuchRoute: 404,
    MethodNotAllowed: 405,
    TransitionRefused: 409,
    RolloutFinished: 409,
    AttemptFenced: 409,
    CallLost: 409,
    IdTaken: 409,
    InputDiffers: 409,
    LeaseHeld: 409,
    LeaseLost: 409,
    BodyTooLarge: 413,
    AgentError: 400,
    PayloadInvalid: 422,
    RunPaused: 429,
    NoServers: 503,
    TooManyCalls: 503,
    LogUnavailable: 503,
    LogFull: 503,
}
"""The status of each error that a client is told about; its message is the detail."""


CODES: Mapping[type[Exception], str] = {BudgetSpent: "budget_exceeded"}
"""What an error is called where providers' errors have a code."""


def reason(error: Exception) -> str:
    """An error's kind in words, as metrics count it: "run paused", "budget spent"."""
    kind = next((kind for kind in type(error).__mro__ if kind in STATUSES), None)
    return "gateway fault" if kind is None else _CAPITAL.sub(" ", kind.__name__).lower()


class Problem(NamedTuple):
    """An error as a response."""

    status: int
    message: str
    headers: list[tuple[bytes, bytes]]


def problem(error: Exception, retry_after_seconds: int) -> Problem:
    """How to answer an error; one that is not in the table is the gateway's own fault, 500, and says nothing more."""
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)
    if status == 500:
        return Problem(status, "Internal server error", [])
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, RunPaused):
        headers = [(b"retry-after", b"%d" % error.pause.retry_after_seconds), (b"x-agl-paused", b"true")]
    elif status == 503:
        headers = [(b"retry-after", b"%d" % retry_after_seconds)]
    elif isinstance(error, BudgetSpent):
        headers = [(b"x-should-retry", b"false")]
    elif status == 401:
        headers = [(b"www-authenticate", b"Bearer")]
    return Problem(status, str(error), headers)
