"""Which rows make a batch: decided once, recorded before the update, followed after a restart.

Invariants:
- a decision names its rows in one order: by draw, by repeat, by row;
- a rollout is chosen or left out, once, and never both;
- what was recorded for a branch, step and trigger is what every later start of that branch trains on there.
"""

import hashlib
import random
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from leyden.log.steps import Steps
from leyden_trainer.ids import IdInvalid, RowKey, parse_rollout_id, uid
from leyden_trainer.samples import Row

KIND = "batch"
_FORMAT = 1
_DIGEST_DIGITS = 16


class DecisionInvalid(ValueError):
    """A decision contradicts itself, or a record is not one."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rollout that is trained on: which of its rows (ascending), with which reward, and what they held."""

    rollout_id: str
    rows: tuple[int, ...]
    reward: float
    digest: str

    def __post_init__(self) -> None:
        if not self.rows or list(self.rows) != sorted(set(self.rows)) or self.rows[0] < 0:
            raise DecisionInvalid(f"rows {self.rows} of rollout {self.rollout_id} must be ascending, at least one")

    @property
    def place(self) -> tuple[int, int]:
        """Draw and repeat; raises IdInvalid for a rollout that no trainer named."""
        slot, _ = parse_rollout_id(self.rollout_id)
        return slot.draw, slot.repeat

    @property
    def keys(self) -> list[RowKey]:
        draw, repeat = self.place
        return [RowKey(uid(draw), repeat, row) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Decision:
    """The batch of one step; `trigger` counts the batches of a step from 0. `left_out` maps rollouts to reasons."""

    branch: str
    step: int
    trigger: int
    chosen: tuple[Chosen, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = [each.place for each in self.chosen]
        if places != sorted(set(places)):
            raise DecisionInvalid(
                f"step {self.step}: rollouts must be in order of draw and repeat, each once: {places}"
            )
        if both := self.left_out.keys() & {each.rollout_id for each in self.chosen}:
            raise DecisionInvalid(f"step {self.step}: {sorted(both)} are chosen and left out")

    @classmethod
    def of(cls, branch: str, step: int, trigger: int, chosen: Iterable[Chosen], left_out: dict[str, str]) -> Self:
        """Put what was chosen, in whatever order it came, in order."""
        return cls(branch, step, trigger, tuple(sorted(chosen, key=lambda each: each.place)), left_out)

    @property
    def keys(self) -> list[str]:
        """verl's row keys, in the batch's order."""
        return [str(key) for each in self.chosen for key in each.keys]

    @property
    def rollout_ids(self) -> list[str]:
        """Everything that this step consumed: chosen in order, then left out."""
        return [*(each.rollout_id for each in self.chosen), *self.left_out]

    @property
    def step_id(self) -> str:
        return f"{self.branch}.{KIND}.{self.step}.{self.trigger}"

    def to_data(self) -> dict[str, Any]:
        """As JSON for the log."""
        return {
            "format": _FORMAT,
            "branch": self.branch,
            "step": self.step,
            "trigger": self.trigger,
            "chosen": [[each.rollout_id, list(each.rows), each.reward, each.digest] for each in self.chosen],
            "left_out": self.left_out,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Read a record.

        Raises:
            DecisionInvalid: it is of another format, or broken.
        """
        if data.get("format") != _FORMAT:
            raise DecisionInvalid(
                f"a batch was recorded in format {data.get('format')!r}, this trainer reads {_FORMAT}"
            )
        try:
            chosen = tuple(Chosen(name, tuple(rows), reward, digest) for name, rows, reward, digest in data["chosen"])
            return cls(data["branch"], data["step"], data["trigger"], chosen, dict(data["left_out"]))
        except (KeyError, TypeError, IdInvalid) as error:
            raise DecisionInvalid(f"a recorded batch can't be read: {error!r} in {str(data)[:500]}") from error


class Decisions:
    """The recorded batches of one branch."""

    def __init__(self, steps: Steps, branch: str) -> None:
        self._steps = steps
        self._branch = branch
        self._recorded: dict[tuple[int, int], Decision] = {}

    async def load(self) -> None:
        """Read what is on record; to be called once before anything else."""
        entries = [entry for entry in await self._steps.read() if entry.kind == KIND]
        found = [Decision.from_data(entry.data) for entry in entries]
        self._recorded = {(each.step, each.trigger): each for each in found if each.branch == self._branch}

    def recorded(self, step: int, trigger: int = 0) -> Decision | None:
        """The batch that has already been decided, which must then be followed."""
        return self._recorded.get((step, trigger))

    async def record(self, decision: Decision, epoch: int) -> None:
        """Put a decision on record; doing it again changes nothing.

        Raises:
            DecisionInvalid: another one is on record for its place, or it is of another branch.
            LeaseLost: another trainer holds the run.
        """
        if decision.branch != self._branch:
            raise DecisionInvalid(f"a batch of branch {decision.branch} can't be recorded for branch {self._branch}")
        known = self.recorded(decision.step, decision.trigger)
        if known is not None and known != decision:
            raise DecisionInvalid(f"step {decision.step}, batch {decision.trigger}: another batch is on record")
        await self._steps.append(KIND, decision.to_data(), epoch=epoch, step_id=decision.step_id)
        self._recorded[decision.step, decision.trigger] = decision


def digest_of(rows: Iterable[Row], reward: float) -> str:
    """Short digest of what is trained on, so that a batch built again can be compared with the one recorded."""
    digest = hashlib.sha256()
    for row in rows:
        for part in (array("i", row.prompt_ids), array("i", row.response_ids), array("b", row.response_mask)):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        digest.update(array("d", row.log_probs or ()).tobytes())
    digest.update(array("d", [reward]).tobytes())
    return digest.hexdigest()[:_DIGEST_DIGITS]


def rows_within(rows: Sequence[tuple[RowKey, float]], most: int, seed: str) -> list[RowKey]:
    """Keep at most `most` rows, given with their rollouts' rewards, in their order.

    Rows of prompts whose rollouts all have the same reward go first, since they teach least; among equals, which ones
    go depends on `seed` alone.
    """
    excess = len(rows) - most
    if excess <= 0:
        return [key for key, _ in rows]
    rewards: defaultdict[str, set[float]] = defaultdict(set)
    for key, reward in rows:
        rewards[key.uid].add(reward)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda index: len(rewards[rows[index][0].uid]) > 1)
    gone = set(order[:excess])
    return [key for index, (key, _) in enumerate(rows) if index not in gone]
