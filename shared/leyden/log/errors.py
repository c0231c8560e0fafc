"""What can go wrong between a caller and the log. Each error names the rollout, run or state that it is about."""

from __future__ import annotations

from leyden.schemas import PauseState


class LogAddressInvalid(ValueError):
    """A Redis URL is none; its text may hold a password and is not repeated."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the Redis URL (LEYDEN_REDIS_URL) is not one: {reason}; it looks like redis://HOST:PORT/0")


class LogUnavailable(ConnectionError):
    """Redis can't be reached, is starting, or refuses writes; nothing is known of the write's effect."""


class LogFull(RuntimeError):
    """Redis is at its memory limit and refused the write; nothing was written."""


class MemoryShort(LogFull):
    """Redis is so near its memory limit that new rollouts are refused, for what runs to be able to end."""

    def __init__(self, used_bytes: int, limit_bytes: int, share: float) -> None:
        super().__init__(
            f"Redis uses {used_bytes / 2**20:.1f} MiB of its memory limit of {limit_bytes / 2**20:.1f} MiB, and new "
            f"rollouts are refused above {share:.0%}: let rollouts be acknowledged, delete some, or raise maxmemory"
        )
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes


class ServerUnsupported(RuntimeError):
    """The server is not one that the log can be kept on; the message says why and what is."""


class RolloutMissing(LookupError):
    """No rollout of this id exists, or it was deleted."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(f"Rollout not found: {rollout_id}")
        self.rollout_id = rollout_id


class RunMissing(LookupError):
    """No run of this name has begun."""

    def __init__(self, run: str) -> None:
        super().__init__(f"Run not found: {run}")


class RolloutFinished(RuntimeError):
    """The rollout has already ended, so this can't happen to it any more."""

    def __init__(self, rollout_id: str, state: str) -> None:
        super().__init__(f"Rollout {rollout_id} has already ended as {state}")
        self.state = state


class TransitionRefused(RuntimeError):
    """A rollout can't go from its state to the one asked for."""

    def __init__(self, rollout_id: str, was: str, wanted: str) -> None:
        super().__init__(f"Rollout {rollout_id}: cannot transition {was} -> {wanted}")


class AttemptFenced(RuntimeError):
    """A later attempt has started, or the token belongs to an earlier rollout of the same id."""

    def __init__(self, rollout_id: str, attempt: str, current: str) -> None:
        now = f"attempt {current} has taken over" if current else "the rollout was created anew"
        super().__init__(f"Rollout {rollout_id}: attempt {attempt} can't write any more, {now}")
        self.current = current


class RunPaused(RuntimeError):
    """New calls are held back."""

    def __init__(self, run: str, pause: PauseState) -> None:
        super().__init__(f"run {run} is paused" + (f": {pause.reason}" if pause.reason else ""))
        self.pause = pause


class BudgetSpent(RuntimeError):
    """The attempt has made all the calls, or used all the tokens, that it may."""

    def __init__(self, rollout_id: str, attempt: str, what: str, used: int, limit: int) -> None:
        super().__init__(
            f"Rollout {rollout_id}: attempt {attempt} has used its budget of {what}: {used} of {limit} "
            f"(max_{what}_per_attempt)"
        )
        self.what = what
        self.used = used
        self.limit = limit


class CallLost(RuntimeError):
    """The call is no longer open: its rollout ended, or another attempt took over."""

    def __init__(self, rollout_id: str, call_id: str) -> None:
        super().__init__(f"call {call_id} of rollout {rollout_id} is no longer open")


class BaseMissing(LookupError):
    """A payload goes on from a call that is not on record in its rollout; nothing was recorded."""

    def __init__(self, rollout_id: str, call_id: str) -> None:
        super().__init__(f"call {call_id}, from which a payload goes on, is not on record in rollout {rollout_id}")


class IdTaken(RuntimeError):
    """The rollout id exists in another run."""

    def __init__(self, rollout_id: str, run: str) -> None:
        super().__init__(f"rollout id {rollout_id} is taken by run {run}; choose another id")
        self.run = run


class InputDiffers(RuntimeError):
    """The rollout exists with another input or config than the one it is created with now."""

    def __init__(self, rollout_id: str) -> None:
        super().__init__(
            f"rollout {rollout_id} exists with another input, mode or config; the data or the configuration changed "
            "under the same ids: use another run or branch"
        )


class LeaseHeld(RuntimeError):
    """Another process holds the trainer's lease."""

    def __init__(self, run: str, holder: str, remaining_seconds: float) -> None:
        super().__init__(f"run {run} has a trainer, {holder}, whose lease lasts {remaining_seconds:.1f} s more")
        self.holder = holder
        self.remaining_seconds = remaining_seconds


class LeaseLost(RuntimeError):
    """What this process held is now held by another, so it must stop writing."""


class DrainTimeout(TimeoutError):
    """Calls were still in flight when the deadline passed."""

    def __init__(self, run: str, inflight: int, seconds: float) -> None:
        super().__init__(f"run {run}: {inflight} calls are still in flight after {seconds:g} s")
        self.inflight = inflight
