"""Every Redis key that Leyden uses, by name. No other module spells one."""

from __future__ import annotations

from dataclasses import dataclass

from leyden.schemas import State

RUNS = "leyden:runs"
"""Stream of runs as they begin and end."""


def index(rollout_id: str) -> str:
    """Hash of rollout id → run and creation nonce; outside every run's slot, so that an id alone finds its run."""
    return f"leyden:index:{rollout_id}"


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Keys of one run; they share the hash tag `{run}`, so a script over them touches one cluster slot."""

    run: str

    def rollout(self, rollout_id: str) -> str:
        return f"leyden:{{{self.run}}}:rollout:{rollout_id}"

    def events(self, rollout_id: str) -> str:
        return f"leyden:{{{self.run}}}:rollout:{rollout_id}:events"

    def in_state(self, state: State) -> str:
        return f"leyden:{{{self.run}}}:rollouts:{state}"

    @property
    def states(self) -> list[str]:
        """The sets of rollout ids, in the order of `State`."""
        return [self.in_state(state) for state in State]

    @property
    def queue(self) -> str:
        return f"leyden:{{{self.run}}}:queue"

    @property
    def completions(self) -> str:
        return f"leyden:{{{self.run}}}:completions"

    @property
    def steps(self) -> str:
        return f"leyden:{{{self.run}}}:steps"

    @property
    def step_ids(self) -> str:
        """Hash: step id → entry of `steps`, so that each is recorded once."""
        return f"leyden:{{{self.run}}}:steps:ids"

    @property
    def settings(self) -> str:
        """Hash: the run's rules, readers, pause, lease, revision and counters."""
        return f"leyden:{{{self.run}}}:run"

    @property
    def models(self) -> str:
        return f"leyden:{{{self.run}}}:models"

    @property
    def freed(self) -> str:
        """Sorted set: `ID NONCE` of freed rollouts, score 0 until the id is released, then the time of that."""
        return f"leyden:{{{self.run}}}:freed"

    @property
    def claims(self) -> str:
        """Sorted set: ids that rollouts are being created under, by the time they were noted."""
        return f"leyden:{{{self.run}}}:claims"

    @property
    def replicas(self) -> str:
        return f"leyden:{{{self.run}}}:replicas"

    @property
    def control(self) -> str:
        """Short stream of what services must react to at once: pause, models, settings, cancellations."""
        return f"leyden:{{{self.run}}}:control"
