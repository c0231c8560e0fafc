"""verl's own inference replicas, on the trainer's accelerators; their HTTP servers are what the gateway calls.

Their requests may only be interrupted while calls are held: an interrupted call would reach its agent as an answer cut
short. Ports change when the trainer restarts, so the run's endpoints are replaced with each version.
"""

import time
from typing import Any


class VerlReplicas:
    """The replicas of a trainer: `servers` is verl's `LLMServerManager`, `weights` its `CheckpointEngineManager`."""

    def __init__(self, servers: Any, weights: Any) -> None:
        self._servers = servers
        self._weights = weights

    def endpoints(self) -> list[str]:
        return [f"http://{address}/v1" for address in self._servers.get_addresses()]

    def load(self, step: int) -> dict[str, float]:
        started = time.monotonic()
        metrics = self._weights.update_weights(step) or {}  # wakes them as well
        return metrics | {"weights/load_seconds": time.monotonic() - started}

    def rest(self) -> None:
        self._weights.sleep_replicas()
