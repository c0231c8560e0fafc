"""New weights, in the order that every mode keeps: hold, drain, load, replace the endpoints, release.

Stands where verl's trainers expect their `CheckpointEngineManager`, so their own loops say when weights change.

Invariants:
- no call is forwarded between the moment a batch is complete, or an update begins, and the moment every server has the
  new weights; a call is on record with the version that sampled it;
- weights are loaded when they are needed: when rollouts are awaited that have not run yet. So a trainer that resumes
  follows what is on record without touching the servers, and the first load starts while agents do.
"""

from collections.abc import Callable

from leyden.schemas import Model
from leyden_trainer.engines import Engines
from leyden_trainer.ids import Version
from leyden_trainer.session import Session

WEIGHTS = "weights"


class WeightUpdates:
    """Brings the actor's weights to `engines` as versions of `branch`; `needed`: whether rollouts are awaited."""

    def __init__(
        self,
        session: Session,
        engines: Engines,
        *,
        branch: str,
        model: str,
        drain_timeout_seconds: float,
        needed: Callable[[], bool],
    ) -> None:
        self._session = session
        self._engines = engines
        self._branch = branch
        self._model = model
        self._drain_timeout_seconds = drain_timeout_seconds
        self._needed = needed
        self._actor_step = 0
        self._served_step: int | None = None
        self._resting = True  # verl's trainers begin with their replicas asleep
        self._metrics: dict[str, float] = {}

    def update_weights(self, global_steps: int | None = None) -> dict[str, float]:
        """The actor has new weights: those after step `global_steps`."""
        if global_steps is not None:
            self._actor_step = global_steps
            self._served_step = None
        return self.bring_up_to_date() if self._needed() else {}

    def bring_up_to_date(self) -> dict[str, float]:
        """Make the servers sample with the actor's weights and let calls go, unless they do; returns timings.

        Raises:
            EngineError, DrainTimeout, LeaseLost: calls stay held.
        """
        if self._served_step == self._actor_step:
            return {}
        step = self._actor_step
        self._session.check()
        self._session.hold(f"weights of step {step} are loading")
        self._session.drain(self._drain_timeout_seconds)
        self._resting = False
        timings = self._engines.load(step)
        version = str(Version(self._branch, step))
        endpoints = self._engines.endpoints()
        self._session.check()
        self._session.release([Model(model=self._model, endpoint=each, version=version) for each in endpoints])
        self._served_step = step
        self._metrics |= timings
        said = {"version": version, "endpoints": endpoints, "timings": timings}
        self._session.record(WEIGHTS, said, f"{WEIGHTS}.{self._session.epoch}.{step}")
        return timings

    def take_metrics(self) -> dict[str, float]:
        """Timings of the loads since this was last asked."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def sleep_replicas(self) -> None:
        """A batch is complete: nothing is sampled until weights are loaded again."""
        self._session.hold("the trainer is updating")
        self._session.drain(self._drain_timeout_seconds)
        if not self._resting:
            self._engines.rest()
        self._resting = True
        self._served_step = None

    def abort_replicas(self, reject_request: bool = False) -> None:
        """verl's asynchronous modes interrupt requests here; ours end first, since an agent can't be interrupted."""
        self._session.hold("the trainer is updating")
        self._session.drain(self._drain_timeout_seconds)

    def resume_generation_replicas(self) -> None:
        """What `abort_replicas` held goes on when weights were loaded."""
