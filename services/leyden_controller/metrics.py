"""What Prometheus is told about a controller."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server


class Metrics:
    """A controller's own metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.held = Gauge("leyden_controller_rollouts_held", "Rollouts in hand.", registry=self.registry)
        self.slots = Gauge("leyden_controller_slots", "How many agents may run at once.", registry=self.registry)
        self.attempts = Counter(
            "leyden_controller_attempts", "Attempts that ended, by cause.", ["cause"], registry=self.registry
        )
        self.rollouts = Counter(
            "leyden_controller_rollouts", "Rollouts that this controller ended.", ["state"], registry=self.registry
        )
        self.waited = Histogram(
            "leyden_controller_start_seconds",
            "From a rollout's being queued to its agent's being started.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 120, 600),
            registry=self.registry,
        )

    def serve(self, host: str, port: int) -> None:
        """Answer `GET /metrics` from a thread of its own."""
        start_http_server(port, host, registry=self.registry)
