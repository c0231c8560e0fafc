"""Model servers, behind one seam: verl's own replicas, or OpenAI servers that run elsewhere.

An update of the weights is the same in every mode: calls are held, those in flight end, the engines load the weights,
the run's endpoints are replaced with the new version, calls are released. Engines do the third of these only; holding
and releasing is the trainer's, so that no engine can get it wrong.
"""

from typing import Protocol


class EngineError(RuntimeError):
    """A model server did not do what it was asked; names the server and what it answered."""


class Engines(Protocol):
    """Servers that sample with the weights last loaded into them. Called by the trainer's main thread only."""

    def endpoints(self) -> list[str]:
        """The OpenAI base URLs, each including `/v1`, that now serve the model."""
        ...

    def load(self, step: int) -> dict[str, float]:
        """Make every server sample with the actor's weights as they stand after `step`; return timings in seconds.

        May be repeated, also after a failure halfway. No call is in flight while it runs.

        Raises:
            EngineError: a server failed or did not answer in time; what it serves now is unknown.
        """
        ...

    def rest(self) -> None:
        """Called when a batch is complete and calls are held: the servers may give up memory until the next `load`."""
        ...
