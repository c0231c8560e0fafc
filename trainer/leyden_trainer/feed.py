"""The run's completions, as the trainer reads them: each handed on once, acknowledged when a checkpoint holds it.

Invariants:
- after a restart the completions that were read and not acknowledged come again, before new ones;
- a completion is acknowledged only if the caller says so, after its effect is durable.
"""

from collections.abc import Callable

import structlog

from leyden.log import Completion, RunLog
from leyden.log.errors import LogUnavailable
from leyden_trainer.patience import patiently
from leyden_trainer.settings import READER

CONSUMER = "trainer"
"""Fixed: who takes over from a trainer that died is the same consumer, and finds what that one had read."""

_BATCH = 500
_WAIT_SECONDS = 20.0

logger = structlog.get_logger(__name__)


class CompletionFeed:
    """Reads one run's completions; `log_timeout_seconds` is how long the log may be away."""

    def __init__(self, run: RunLog, log_timeout_seconds: float) -> None:
        self._run = run
        self._patience = log_timeout_seconds
        self._held: dict[int, Completion] = {}
        self._newest = 0

    @property
    def newest(self) -> int:
        """The ordinal of the last completion that was read, 0 before the first."""
        return self._newest

    @property
    def held(self) -> list[Completion]:
        """What was read and is not acknowledged, in completion order."""
        return [self._held[ordinal] for ordinal in sorted(self._held)]

    async def follow(self, handle: Callable[[Completion], None]) -> None:
        """Hand every completion to `handle`, once each; never returns."""
        completions = self._run.completions
        while True:
            doing = "reading completions"
            self._hand_on(await patiently(lambda: completions.pending(READER, CONSUMER), doing, self._patience), handle)
            try:
                while True:
                    self._hand_on(await completions.read(READER, CONSUMER, _BATCH, _WAIT_SECONDS), handle)
            except LogUnavailable as error:
                # An answer may be lost on its way; what it held is pending, so it comes again.
                logger.warning("the log is away, reading completions again", error=str(error))

    async def acknowledge(self, done: Callable[[Completion], bool], epoch: int | None = None) -> int:
        """Acknowledge the completions of which `done` is true; returns how many they were.

        Raises:
            LeaseLost: an `epoch` is given, and another trainer holds the run.
        """
        chosen = [completion for completion in self.held if done(completion)]
        doing = f"acknowledging {len(chosen)} completions"
        acknowledge = self._run.completions.acknowledge
        await patiently(lambda: acknowledge(READER, chosen, epoch=epoch), doing, self._patience)
        for completion in chosen:
            del self._held[completion.ordinal]
        return len(chosen)

    def _hand_on(self, completions: list[Completion], handle: Callable[[Completion], None]) -> None:
        for completion in completions:
            if completion.ordinal not in self._held:
                self._held[completion.ordinal] = completion
                self._newest = max(self._newest, completion.ordinal)
                handle(completion)
