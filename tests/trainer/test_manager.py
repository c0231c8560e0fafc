"""Prompts to rollouts to rows, over a real server; agents are played by writing what they would leave in the log."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leyden.hooks import RolloutHooks
from leyden.log import Log, RunLog
from leyden.log.errors import InputDiffers
from leyden.schemas import NewRollout, RolloutConfig, State
from leyden_trainer.groups import Group, Groups
from leyden_trainer.hook_runner import HookRunner
from leyden_trainer.log_thread import LogThread
from leyden_trainer.manager import RolloutManager, Rules
from leyden_trainer.samples import Aggregation, Level

RUN = "test"
TRAIN = [{"q": "a"}, {"q": "b", "data_source": "hard"}]
VAL = [{"q": "v"}]


class Life:
    """A trainer's manager, as long as the process lives."""

    def __init__(self, url: str, train: list[Any] = TRAIN, hooks: RolloutHooks | None = None, **rules: Any) -> None:
        self.groups = Groups()
        self.thread = LogThread(self.groups.fail)
        self.needed = 0
        self.put: dict[str, dict[str, Any]] = {}
        run = Log.connect(url).run(RUN)
        defaults: dict[str, Any] = {
            "config": RolloutConfig(),
            "train_repeats": 2,
            "val_repeats": 1,
            "tries": 2,
            "fill_failed": False,
            "fill_reward": 0.0,
            "aggregation": Aggregation(Level.TRAJECTORY, 10, 10),
            "log_timeout_seconds": 10,
        }
        self.manager = RolloutManager(
            run,
            self.thread,
            self.groups,
            (train, VAL),
            ("b", "parent"),
            Rules(**defaults | rules),
            None if hooks is None else HookRunner(hooks, run),
            self._put_rows,
            self._need,
        )
        self.thread.spawn(self.manager.work())

    def ask(self, *draws: int, step: int = 1) -> None:
        uids = [f"d{draw}" for draw in draws]
        batch = {"uid": uids, "index": [draw % len(TRAIN) for draw in draws], "global_steps": step}
        self.manager.generate_sequences(batch)

    def validate(self, step: int = 1) -> None:
        self.manager.generate_sequences({"uid": [f"uuid-{step}"], "index": [0], "global_steps": step, "validate": True})

    async def complete(self, partition: str = "train") -> list[Group]:
        return await asyncio.to_thread(self.groups.wait, all_complete, partition, 10)

    def die(self) -> None:
        self.thread.close()

    def _need(self) -> None:
        self.needed += 1

    def _put_rows(self, uid: str, repeat: int, rows: Any, **about: Any) -> dict[str, dict[str, Any]]:
        tags = {f"{uid}_{repeat}_{place}": {"response_len": len(row.response_ids)} for place, row in enumerate(rows)}
        self.put |= {key: about for key in tags}
        return tags


def all_complete(groups: list[Group]) -> list[Group] | None:
    return groups if groups and all(group.complete for group in groups) else None


def digests(groups: list[Group]) -> dict[str, dict[int, str]]:
    """By prompt and repeat, whichever ended first."""
    return {group.uid: {repeat: each.digest for repeat, each in group.outcomes.items()} for group in groups}


@pytest.fixture
def life(redis_url: str, run: RunLog) -> Iterator[Callable[..., Life]]:
    lives: list[Life] = []

    def begin(**settings: Any) -> Life:
        lives.append(Life(redis_url, **settings))
        return lives[-1]

    yield begin
    for each in lives:
        each.die()


async def play(run: RunLog, name: str, *, reward: float | None = 0.5, calls: int = 1) -> None:
    """An agent that asks `calls` unrelated questions and gets its reward."""
    for number in range(calls):
        ids = {"prompt_token_ids": [1, number], "choices": [{"token_ids": [5, 6], "logprobs": log_probs(2)}]}
        request = {"response": ids, "http_status": 200, "status": "ok", "server": {"model": "m", "version": "b:0"}}
        await run.events.append(name, "0", "model_request", request)
    if reward is not None:
        await run.events.append(name, "0", "reward", {"value": reward})
    await run.rollouts.end(name, State.SUCCEEDED)


def log_probs(count: int) -> dict[str, Any]:
    return {"content": [{"logprob": -0.5}] * count}


async def fail(run: RunLog, name: str) -> None:
    await run.rollouts.end(name, State.FAILED, error="exit 1")


async def created(run: RunLog) -> list[str]:
    return [each.rollout_id for each in await run.rollouts.in_states(list(State), 100)]


async def test_a_prompt_becomes_its_repeats_with_ids_that_say_what_they_are_for(life, run: RunLog):
    trainer = life()

    trainer.ask(4, 5)

    assert await created(run) == ["test.b.t4.0.0", "test.b.t4.1.0", "test.b.t5.0.0", "test.b.t5.1.0"]
    rollout = await run.rollouts.get("test.b.t5.1.0")
    assert (rollout.input, rollout.is_train) == (TRAIN[1], True)
    assert rollout.metadata.model_dump(exclude_none=True) == {
        "sample_idx_in_batch": 1,
        "branch": "b",
        "draw": 5,
        "try": 0,
    }
    assert trainer.needed == 1


async def test_validation_asks_the_same_way_under_ids_of_its_own(life, run: RunLog):
    trainer = life()
    trainer.validate(step=7)
    await play(run, "test.b.v7-0.0.0")

    (group,) = await trainer.complete("val")

    assert list(group.rows) == ["uuid-7_0_0"]
    assert not (await run.rollouts.get("test.b.v7-0.0.0")).is_train


async def test_a_finished_rollout_becomes_rows_with_its_reward(life, run: RunLog):
    trainer = life()
    trainer.ask(1)
    await play(run, "test.b.t1.0.0", reward=0.75, calls=2)
    await play(run, "test.b.t1.1.0", reward=None)

    (group,) = await trainer.complete()

    assert list(group.rows) == ["d1_0_0", "d1_0_1", "d1_1_0"]
    assert (group.outcomes[0].reward, group.outcomes[0].reward_filled) == (0.75, False)
    assert (group.outcomes[1].reward, group.outcomes[1].reward_filled) == (0.0, True)
    about = trainer.put["d1_0_1"]
    assert (about["reward"], about["data_source"], about["step"]) == (0.75, "hard", 1)
    assert about["branches"] == ("b", "parent")


async def test_a_failed_rollout_is_asked_for_again_under_the_next_try(life, run: RunLog):
    trainer = life(train_repeats=1)
    trainer.ask(0)
    await fail(run, "test.b.t0.0.0")
    await until_created(run, "test.b.t0.0.1")
    await play(run, "test.b.t0.0.1")

    (group,) = await trainer.complete()

    assert group.outcomes[0].rollout_id == "test.b.t0.0.1"
    assert list(group.rows) == ["d0_0_0"]


async def until_created(run: RunLog, name: str) -> None:
    async with asyncio.timeout(10):
        while name not in await created(run):
            await asyncio.sleep(0.02)


async def test_a_rollout_that_fails_in_every_try_is_left_out_with_its_reason(life, run: RunLog):
    trainer = life(train_repeats=1, tries=1)
    trainer.ask(0)
    await fail(run, "test.b.t0.0.0")

    (group,) = await trainer.complete()

    assert group.rows == {}
    assert group.outcomes[0].failure == "exit 1"


async def test_a_failed_rollout_is_trained_on_where_that_is_asked_for(life, run: RunLog):
    trainer = life(train_repeats=1, tries=1, fill_failed=True, fill_reward=-1.0)
    trainer.ask(0)
    request = {"prompt_token_ids": [1], "choices": [{"token_ids": [5], "logprobs": log_probs(1)}]}
    await run.events.append("test.b.t0.0.0", "0", "model_request", {"response": request, "http_status": 200})
    await fail(run, "test.b.t0.0.0")

    (group,) = await trainer.complete()

    assert list(group.rows) == ["d0_0_0"]
    assert (group.outcomes[0].filled, group.outcomes[0].reward) == (True, -1.0)


async def test_a_rollout_without_a_usable_call_says_why_it_has_no_rows(life, run: RunLog):
    trainer = life(train_repeats=1)
    trainer.ask(0)
    await run.events.append("test.b.t0.0.0", "0", "model_request", {"response": {}, "http_status": 200})
    await run.rollouts.end("test.b.t0.0.0", State.SUCCEEDED)

    (group,) = await trainer.complete()

    assert group.outcomes[0].failure == "no call of 1 can be trained on: {'no_prompt_ids': 1}"
    assert group.outcomes[0].dropped == {"no_prompt_ids": 1}


async def test_a_deleted_rollout_is_left_out(life, run: RunLog):
    trainer = life(train_repeats=1, tries=1)
    trainer.ask(0)
    await run.rollouts.delete("test.b.t0.0.0")

    (group,) = await trainer.complete()

    assert group.outcomes[0].failure == "deleted"


async def test_after_a_restart_asking_again_finds_what_already_ran(life, run: RunLog):
    first = life()
    first.ask(0, 1)
    for name in await created(run):
        await play(run, name)
    before = await first.complete()
    first.die()

    second = life()
    second.ask(0, 1)
    after = await second.complete()

    assert second.needed == 0, "no weights are loaded for what has already run"
    assert len(await created(run)) == 4
    assert digests(after) == digests(before)


async def test_after_a_restart_failed_tries_are_not_tried_again(life, run: RunLog):
    first = life(train_repeats=1)
    first.ask(0)
    await fail(run, "test.b.t0.0.0")
    await until_created(run, "test.b.t0.0.1")
    await fail(run, "test.b.t0.0.1")
    await first.complete()
    first.die()

    second = life(train_repeats=1)
    second.ask(0)
    (group,) = await second.complete()

    assert group.outcomes[0].rollout_id == "test.b.t0.0.1"
    assert len(await created(run)) == 2


async def test_data_that_changed_under_a_known_id_is_an_error(life):
    life().ask(0)

    with pytest.raises(InputDiffers, match=r"test\.b\.t0\.0\.0"):
        life(train=[{"q": "changed"}, {"q": "b"}]).ask(0)


async def test_a_checkpoint_lets_go_of_what_it_holds_and_nothing_else(life, run: RunLog):
    trainer = life(train_repeats=1)
    trainer.ask(0, 1)
    trainer.validate(step=1)
    trainer.validate(step=2)
    for name in await created(run):
        await play(run, name)
    await trainer.complete()
    await trainer.complete("val")

    assert trainer.manager.acknowledge(drawn=1, step=2) == 2

    assert sorted(await created(run)) == ["test.b.t1.0.0", "test.b.v2-0.0.0"]
    assert trainer.manager.acknowledge_everything() == 2
    assert await created(run) == []


async def test_what_others_left_in_the_run_goes_with_the_next_checkpoint(life, run: RunLog, log: Log):
    trainer = life(train_repeats=1)
    trainer.ask(0)
    await play(run, "test.b.t0.0.0")
    for stranger in ("test.old.t7.0.0", "made-by-hand"):
        await run.rollouts.create(new(stranger))
        await play(run, stranger)
    await trainer.complete()
    async with asyncio.timeout(10):
        while trainer.manager.completions_read < 3:
            await asyncio.sleep(0.02)

    assert trainer.manager.acknowledge(drawn=1, step=1) == 3


def new(name: str) -> NewRollout:
    return NewRollout(input=1, rollout_id=name)


async def test_hooks_run_before_a_rollout_becomes_rows(life, run: RunLog):
    class Judge(RolloutHooks):
        def on_enqueue(self, request):
            request.input["hint"] = "h"
            return request

        def on_succeeded(self, rollout, events, store):
            store.add_event(rollout.rollout_id, "0", "reward", {"value": 0.125})

    trainer = life(train_repeats=1, hooks=Judge())
    trainer.ask(0)
    assert (await run.rollouts.get("test.b.t0.0.0")).input == {"q": "a", "hint": "h"}
    await play(run, "test.b.t0.0.0", reward=1.0)

    (group,) = await trainer.complete()

    assert group.outcomes[0].reward == 0.125


async def test_a_hook_that_raises_ends_the_wait(life, run: RunLog):
    class Ill(RolloutHooks):
        def on_succeeded(self, rollout, events, store):
            raise ValueError("the judge is ill")

    trainer = life(train_repeats=1, hooks=Ill())
    trainer.ask(0)
    await play(run, "test.b.t0.0.0")

    with pytest.raises(ValueError, match="the judge is ill"):
        await trainer.complete()
