"""Names of what a training run does, made from what it is, so that asking again finds what already exists.

Invariants:
- two rollouts have the same id exactly when run, branch, phase, draw, repeat and try are the same;
- an id is a valid rollout id of the log, and all but its run's name is lower-case letters, digits, `-` and `.`, so that
  a run named likewise gives names that Kubernetes takes;
- the name that verl knows a prompt by holds no `_`, since verl cuts its row keys there.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

MAX_LENGTH = 200
MAX_RUN_LENGTH = 120

_RUN = re.compile(r"[A-Za-z0-9._~@=+-]+")
_BRANCH = re.compile(r"[a-z0-9]+")
_ROLLOUT = re.compile(
    r"(?P<run>.+)\.(?P<branch>[a-z0-9]+)\.(?:t|v(?P<val_step>\d+)-)(?P<draw>\d+)\.(?P<repeat>\d+)\.(?P<tried>\d+)"
)
_UID = re.compile(r"d(\d+)")
_BRANCH_DIGITS = 8


class IdInvalid(ValueError):
    """A name is not one that this module makes, or can't be made from what was given."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """A place in training for one rollout: the `repeat`th run (from 0) on the `draw`th prompt (from 0).

    `draw` counts prompts drawn from the data loader, in training since the beginning of the branch's data order, in
    validation (`val_step` is set) since the beginning of the validation after that step.
    """

    run: str
    branch: str
    val_step: int | None
    draw: int
    repeat: int

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run) or len(self.run) > MAX_RUN_LENGTH:
            raise IdInvalid(f"run {self.run!r} must be 1 to {MAX_RUN_LENGTH} of letters, digits and . _ ~ @ = + -")
        if not _BRANCH.fullmatch(self.branch):
            raise IdInvalid(f"branch {self.branch!r} must be lower-case letters and digits")
        if min(self.val_step or 0, self.draw, self.repeat) < 0:
            raise IdInvalid(f"step, draw and repeat count from 0: {self}")

    @property
    def is_train(self) -> bool:
        return self.val_step is None


def rollout_id(slot: Slot, tried: int) -> str:
    """Name the rollout of a slot; `tried` counts from 0 and rises when a failed rollout is asked for again.

    Raises:
        IdInvalid: the id would be longer than the log takes.
    """
    phase = "t" if slot.val_step is None else f"v{slot.val_step}-"
    name = f"{slot.run}.{slot.branch}.{phase}{slot.draw}.{slot.repeat}.{tried}"
    if len(name) > MAX_LENGTH:
        raise IdInvalid(f"rollout id {name} has {len(name)} characters, at most {MAX_LENGTH} are possible")
    return name


def parse_rollout_id(name: str) -> tuple[Slot, int]:
    """Read back slot and try.

    Raises:
        IdInvalid: the trainer did not make this id.
    """
    found = _ROLLOUT.fullmatch(name)
    if found is None:
        raise IdInvalid(f"{name!r} is not a rollout id of a trainer")
    val_step = None if found["val_step"] is None else int(found["val_step"])
    slot = Slot(found["run"], found["branch"], val_step, int(found["draw"]), int(found["repeat"]))
    if rollout_id(slot, int(found["tried"])) != name:
        raise IdInvalid(f"{name!r} is not a rollout id of a trainer: a number has leading zeros")
    return slot, int(found["tried"])


def branch_id(run: str, parent: str | None, resumed_step: int, config_digest: str) -> str:
    """Name a line of training: where it began and with what config. Eight hexadecimal digits.

    `parent` is the run's latest branch, None for its first; `resumed_step` the checkpoint's step, 0 without one.
    """
    return _digest(run, parent or "", str(resumed_step), config_digest)[:_BRANCH_DIGITS]


def uid(draw: int) -> str:
    """Name a prompt for verl."""
    return f"d{draw}"


def draw_of(name: str) -> int:
    """The draw that a verl uid stands for; raises IdInvalid for others, such as padding's."""
    found = _UID.fullmatch(name)
    if found is None:
        raise IdInvalid(f"{name!r} is not the uid of a drawn prompt")
    return int(found[1])


@dataclass(frozen=True, slots=True)
class RowKey:
    """verl's key of one row: the prompt's uid, the rollout's repeat (verl: session) and the row's place in it."""

    uid: str
    repeat: int
    row: int

    def __str__(self) -> str:
        return f"{self.uid}_{self.repeat}_{self.row}"

    @property
    def rollout(self) -> tuple[str, int]:
        """What all rows of one rollout share, and no others."""
        return self.uid, self.repeat

    @classmethod
    def parse(cls, key: str) -> Self:
        """Read a key of any row, padding's included.

        Raises:
            IdInvalid: it is not `{uid}_{repeat}_{row}`.
        """
        name, _, rest = key.partition("_")
        repeat, _, row = rest.partition("_")
        if not (name and repeat.isdecimal() and row.isdecimal()):
            raise IdInvalid(f"{key!r} is not a row key, which is uid_repeat_row")
        return cls(name, int(repeat), int(row))


@dataclass(frozen=True, slots=True)
class Version:
    """Weights: those of a branch after a step."""

    branch: str
    step: int

    def __str__(self) -> str:
        return f"{self.branch}:{self.step}"

    @classmethod
    def parse(cls, value: Any) -> Self | None:
        """Read what a call recorded; None where that is not a trainer's version."""
        branch, colon, step = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        return cls(branch, int(step)) if branch and colon and step.isdecimal() else None


def steps_of(versions: Iterable[Any], branches: Iterable[str]) -> tuple[int, int] | None:
    """Oldest and newest step among recorded versions; None when one is unknown or of none of these branches."""
    known = set(branches)
    parsed = [Version.parse(value) for value in versions]
    steps = [version.step for version in parsed if version is not None and version.branch in known]
    return (min(steps), max(steps)) if steps and len(steps) == len(parsed) else None


def _digest(*parts: str) -> str:
    """SHA-256 over parts that can't run into each other, in hexadecimal."""
    joined = b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in parts)
    return hashlib.sha256(joined).hexdigest()
