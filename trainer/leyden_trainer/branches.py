"""Which line of training this is.

A branch goes on as long as a run resumes from its newest checkpoint with the same data and configuration. Any other
beginning is a new branch, whose rollouts have ids of their own, so that nothing sampled for another past is used.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from leyden.log import StepEntry
from leyden_trainer.ids import branch_id
from leyden_trainer.resume import Resume

BRANCH = "branch"
CHECKPOINT = "checkpoint"


def digest_with_rows(config_digest: str, rows: Iterable[bytes]) -> str:
    """Digest of a configuration and of the data, given as JSON with sorted keys."""
    digest = hashlib.sha256(config_digest.encode())
    for row in rows:
        digest.update(len(row).to_bytes(8) + row)
    return digest.hexdigest()


def choose_branches(
    run: str, resume: Resume, entries: Sequence[StepEntry], digest: str, pinned: str | None = None
) -> tuple[str, ...]:
    """The branch to train on and those it goes on from, newest first, given all that the run has on record.

    It is the run's latest branch if that began or was last saved where training now goes on, with the same
    configuration; else a new one. `pinned` is a branch that the user insists on.
    """
    if pinned is not None:
        return (pinned, *(branch for branch in _parents(resume) if branch != pinned))
    begun = [entry.data for entry in entries if entry.kind == BRANCH]
    parents = _parents(resume)
    if not begun:
        return (branch_id(run, None, resume.step, digest), *parents)
    latest = begun[-1]
    saved = [e.data["step"] for e in entries if e.kind == CHECKPOINT and e.data["branch"] == latest["branch"]]
    goes_on = latest["branch"] in parents[:1] and max(saved, default=0) <= resume.step
    begins_again = tuple(latest["parents"]) == parents and latest["step"] == resume.step and not saved
    if latest["config"] == digest and (goes_on or begins_again):
        return (latest["branch"], *latest["parents"])
    return (branch_id(run, latest["branch"], resume.step, digest), *parents)


def branch_record(branches: Sequence[str], resume: Resume, digest: str) -> dict[str, Any]:
    """What is recorded when a branch begins."""
    return {"branch": branches[0], "parents": list(branches[1:]), "step": resume.step, "config": digest}


def _parents(resume: Resume) -> tuple[str, ...]:
    return resume.state.branches if resume.state is not None else ()
