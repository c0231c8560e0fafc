"""verl's agent loop manager over the log: prompts become rollouts, finished rollouts become rows.

Invariants:
- a rollout's id says what it is for, so asking again, in this process or after a restart, finds what already ran;
- each repeat of a prompt is settled once: with its rows, or with the reason why it has none;
- a rollout that failed is asked for again under the next try, at most `tries` times in all;
- rows are in TransferQueue before their group counts as complete; what is dropped never gets there.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from leyden.log import Completion, RunLog
from leyden.log.errors import RolloutMissing
from leyden.schemas import Event, NewRollout, RolloutConfig, RolloutMetadata, State
from leyden_trainer.dataset import data_source_of
from leyden_trainer.decisions import digest_of
from leyden_trainer.feed import CompletionFeed
from leyden_trainer.groups import Group, Groups, Outcome
from leyden_trainer.hook_runner import HookRunner
from leyden_trainer.ids import IdInvalid, Slot, draw_of, parse_rollout_id, rollout_id
from leyden_trainer.log_thread import LogThread
from leyden_trainer.patience import patiently
from leyden_trainer.rewards import reward_of
from leyden_trainer.samples import Aggregation, Row, aggregate

logger = structlog.get_logger(__name__)

_TRAIN, _VAL = "train", "val"
_SETTLED_AT_ONCE = 8


class PutRows(Protocol):
    """Puts one rollout's rows where the trainer reads them, and returns their tags by key, in row order."""

    def __call__(
        self,
        uid: str,
        repeat: int,
        rows: Sequence[Row],
        *,
        reward: float,
        data_source: str,
        step: int,
        branches: Sequence[str],
        partition: str,
    ) -> dict[str, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """How rollouts are asked for and judged."""

    config: RolloutConfig
    train_repeats: int
    val_repeats: int
    tries: int
    fill_failed: bool
    fill_reward: float
    aggregation: Aggregation
    log_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of data, drawn at `step`: verl's uid for it and its place in its data set."""

    uid: str
    index: int
    step: int
    partition: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A rollout that is awaited."""

    slot: Slot
    tried: int
    prompt: Prompt

    @property
    def rollout_id(self) -> str:
        return rollout_id(self.slot, self.tried)


class RolloutManager:
    """Asks for rollouts and settles them. Its coroutines run in the log's thread, `generate_sequences` in verl's.

    `inputs` are the train and the val rows; `branches` is this branch and those it goes on from; `on_need` is called,
    in verl's thread, when rollouts were asked for that have not already run.
    """

    def __init__(
        self,
        run: RunLog,
        thread: LogThread,
        groups: Groups,
        inputs: tuple[Sequence[Any], Sequence[Any]],
        branches: Sequence[str],
        rules: Rules,
        hooks: HookRunner | None,
        put_rows: PutRows,
        on_need: Callable[[], Any],
    ) -> None:
        self._run = run
        self._thread = thread
        self._groups = groups
        self._inputs: dict[str, Sequence[Any]] = dict(zip((_TRAIN, _VAL), inputs, strict=True))
        self._branches = branches
        self._rules = rules
        self._hooks = hooks
        self._put_rows = put_rows
        self._on_need = on_need
        self._feed = CompletionFeed(run, rules.log_timeout_seconds)
        self._awaited: dict[str, Asked] = {}
        self._settling = asyncio.Semaphore(_SETTLED_AT_ONCE)
        self._tasks = asyncio.TaskGroup()
        self._working = asyncio.Event()

    async def work(self) -> None:
        """Follow completions and settle rollouts, until cancelled or until something fails."""
        if self._hooks is not None:
            await self._hooks.startup()
        try:
            async with self._tasks:
                self._working.set()
                self._tasks.create_task(self._feed.follow(self._completed))
        except BaseExceptionGroup as failures:
            if len(failures.exceptions) == 1:
                raise failures.exceptions[0] from None
            raise

    def generate_sequences(self, batch: Any) -> None:
        """Ask for every repeat of a batch of prompts, verl's TensorDict; returns when they are in the log."""
        prompts = _prompts(batch)
        repeats = self._rules.val_repeats if prompts[0].partition == _VAL else self._rules.train_repeats
        asked = [Asked(self._slot(prompt, repeat), 0, prompt) for prompt in prompts for repeat in range(repeats)]
        self._groups.add(
            Group(
                uid=prompt.uid,
                partition=prompt.partition,
                order=self._slot(prompt, 0).draw,
                step=prompt.step,
                open={each.slot.repeat: each.rollout_id for each in asked if each.prompt is prompt},
            )
            for prompt in prompts
        )
        doing = f"asking for {len(asked)} rollouts of step {prompts[0].step}, the first of them {asked[0].rollout_id}"
        self._thread.call(self._ask(asked), doing, 2 * self._rules.log_timeout_seconds)
        if self._groups.waiting():
            self._on_need()

    @property
    def completions_read(self) -> int:
        """How far in the run's completions this is."""
        return self._feed.newest

    def acknowledge(self, drawn: int, step: int, epoch: int | None = None) -> int:
        """Let go of what a checkpoint at `step`, after `drawn` prompts, does not need; returns how many rollouts.

        Raises:
            LeaseLost: an `epoch` is given, and another trainer holds the run.
        """

        def done(completion: Completion) -> bool:
            try:
                slot, _ = parse_rollout_id(completion.rollout_id)
            except IdInvalid:
                return True
            if (slot.run, slot.branch) != (self._run.run, self._branches[0]):
                return True
            return slot.draw < drawn if slot.val_step is None else slot.val_step < step

        doing = f"acknowledging the completions up to step {step}"
        return self._thread.call(self._feed.acknowledge(done, epoch), doing, 2 * self._rules.log_timeout_seconds)

    def acknowledge_everything(self, epoch: int | None = None) -> int:
        """Let go of all that was read; for the end of training."""
        doing = "acknowledging all completions"
        return self._thread.call(
            self._feed.acknowledge(lambda _: True, epoch), doing, 2 * self._rules.log_timeout_seconds
        )

    def _slot(self, prompt: Prompt, repeat: int) -> Slot:
        branch = self._branches[0]
        if prompt.partition == _VAL:
            return Slot(self._run.run, branch, prompt.step, prompt.index, repeat)
        return Slot(self._run.run, branch, None, draw_of(prompt.uid), repeat)

    async def _ask(self, asked: Sequence[Asked]) -> None:
        await self._working.wait()
        new = [await self._new(each) for each in asked]
        self._awaited |= {each.rollout_id: each for each in asked}
        rollouts = await patiently(
            lambda: self._run.rollouts.create_many(new, must_match=True),
            f"creating {len(new)} rollouts",
            self._rules.log_timeout_seconds,
        )
        for each, rollout in zip(asked, rollouts, strict=True):
            if rollout.status.state.terminal:
                self._ended(each.rollout_id, rollout.status.state)

    async def _new(self, asked: Asked) -> NewRollout:
        slot, prompt = asked.slot, asked.prompt
        new = NewRollout(
            rollout_id=asked.rollout_id,
            input=self._inputs[prompt.partition][prompt.index],
            is_train=slot.is_train,
            config=self._rules.config,
            metadata=RolloutMetadata.model_validate(
                {"sample_idx_in_batch": slot.repeat, "branch": slot.branch, "draw": slot.draw, "try": asked.tried}
            ),
        )
        return new if self._hooks is None else await self._hooks.enqueue(new)

    def _completed(self, completion: Completion) -> None:
        self._groups.moved()
        self._ended(completion.rollout_id, completion.state)

    def _ended(self, name: str, state: State) -> None:
        """Settle a rollout, if it is one that is awaited and not already being settled."""
        asked = self._awaited.pop(name, None)
        if asked is not None:
            self._tasks.create_task(self._settle(asked, state))

    async def _settle(self, asked: Asked, state: State) -> None:
        async with self._settling:
            try:
                outcome = await patiently(
                    lambda: self._outcome(asked, state),
                    f"reading rollout {asked.rollout_id}",
                    self._rules.log_timeout_seconds,
                )
            except RolloutMissing:
                outcome = Outcome(asked.rollout_id, failure="deleted")
        if outcome is None:
            again = Asked(asked.slot, asked.tried + 1, asked.prompt)
            self._groups.replace_open(asked.prompt.uid, asked.slot.repeat, again.rollout_id)
            await self._ask([again])
            return
        self._groups.settle(asked.prompt.uid, asked.slot.repeat, outcome)

    async def _outcome(self, asked: Asked, state: State) -> Outcome | None:
        """What a finished rollout came to; None if it is to be asked for again."""
        name = asked.rollout_id
        if self._hooks is not None:
            await self._hooks.finished(name, state)
        if state is State.FAILED:
            error = (await self._run.rollouts.get(name)).status.error_message or "failed"
            if asked.tried + 1 < self._rules.tries:
                logger.warning("a rollout failed, asking again", rollout_id=name, error=error)
                return None
            logger.warning("a rollout failed", rollout_id=name, error=error, filled=self._rules.fill_failed)
            if not self._rules.fill_failed:
                return Outcome(name, failure=error)
        events = await self._run.events.of_attempt(name)
        outcome = await asyncio.to_thread(self._build, asked, events)
        if state is State.FAILED:
            outcome.filled = True
        return outcome

    def _build(self, asked: Asked, events: Sequence[Event]) -> Outcome:
        prompt = asked.prompt
        samples = aggregate(events, self._rules.aggregation, log_probs_required=asked.slot.is_train)
        reward = reward_of(events, self._rules.fill_reward)
        dropped = {str(reason): calls for reason, calls in samples.dropped_calls().items()}
        if not samples.rows:
            why = f"no call of {samples.calls} can be trained on" + (f": {dropped}" if dropped else "")
            return Outcome(asked.rollout_id, failure=why, dropped=dropped)
        tags = self._put_rows(
            prompt.uid,
            asked.slot.repeat,
            samples.rows,
            reward=reward.value,
            data_source=data_source_of(self._inputs[prompt.partition][prompt.index]),
            step=prompt.step,
            branches=self._branches,
            partition=prompt.partition,
        )
        return Outcome(
            asked.rollout_id,
            rows=tags,
            reward=reward.value,
            reward_filled=reward.filled,
            digest=digest_of(samples.rows, reward.value),
            dropped=dropped,
        )


def _prompts(batch: Any) -> list[Prompt]:
    """The prompts of verl's batch."""
    step = int(_plain(batch["global_steps"]))
    partition = _VAL if "validate" in batch and bool(_plain(batch["validate"])) else _TRAIN
    return [
        Prompt(str(_plain(uid)), int(_plain(index)), step, partition)
        for uid, index in zip(list(batch["uid"]), list(batch["index"]), strict=True)
    ]


def _plain(value: Any) -> Any:
    """What tensordict wraps values that are no tensors in."""
    return getattr(value, "data", value)
