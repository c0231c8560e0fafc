"""Which model server a call goes to.

Invariants:
- a rollout keeps to one endpoint as long as that one answers, so that its prefix stays in that server's cache; when
  endpoints come or go, only the rollouts of those move;
- an endpoint that failed is passed over until its cool-down is over; if all are cooling, the one that cools soonest is
  asked, so there is always somewhere to go.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from leyden.schemas import Model

_MAX_COOLDOWN_SECONDS = 60.0
FAILED_STATUSES = frozenset({502, 503, 504})
"""Statuses that say that a server, rather than one request, is in trouble."""


def ranked(models: Sequence[Model], rollout_id: str) -> list[Model]:
    """The endpoints in the order in which a rollout prefers them (rendezvous hashing)."""
    if len(models) == 1:
        return list(models)
    key = rollout_id.encode()
    return sorted(models, key=lambda model: _weight(model.endpoint, key), reverse=True)


def _weight(endpoint: str, key: bytes) -> bytes:
    return hashlib.blake2b(endpoint.encode() + b"\0" + key, digest_size=8).digest()


class Health:
    """What this replica has lately seen of each endpoint."""

    def __init__(self, cooldown_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._cooling: dict[str, tuple[float, int]] = {}
        """Endpoint → when it may be asked again, and how often it has failed in a row."""

    def best(self, preferred: Sequence[Model]) -> Model:
        """The first of `preferred`, which is not empty, that is not cooling; else the one that cools soonest."""
        if not self._cooling:
            return preferred[0]
        now = self._clock()
        for model in preferred:
            if self._ready_at(model) <= now:
                return model
        return min(preferred, key=self._ready_at)

    def answered(self, endpoint: str) -> None:
        """Note that an endpoint gave an answer."""
        if self._cooling:
            self._cooling.pop(endpoint, None)

    def failed(self, endpoint: str) -> None:
        """Note that an endpoint did not answer, or answered that it can't."""
        now = self._clock()
        until, failures = self._cooling.get(endpoint, (0.0, 0))
        if now < until:
            return  # calls that were under way together fail together: that is one failure
        wait = min(self._cooldown_seconds * 2**failures, _MAX_COOLDOWN_SECONDS)
        self._cooling[endpoint] = (now + wait, min(failures + 1, 16))

    def _ready_at(self, model: Model) -> float:
        return self._cooling.get(model.endpoint, (0.0, 0))[0]
