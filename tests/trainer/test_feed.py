"""Completions as the trainer reads them, over a real server."""

import asyncio

from leyden.log import Completion, Log, RunLog
from leyden.schemas import NewRollout, State
from leyden_trainer.feed import CompletionFeed


async def finish(run: RunLog, *names: str) -> None:
    for name in names:
        await run.rollouts.create(NewRollout(input=1, rollout_id=name))
        await run.rollouts.end(name, State.SUCCEEDED)


class Following:
    """A feed that is followed, and what it has handed on."""

    def __init__(self, run: RunLog) -> None:
        self.feed = CompletionFeed(run, log_timeout_seconds=5)
        self.seen: list[str] = []
        self._task = asyncio.create_task(self.feed.follow(self._handle))

    def _handle(self, completion: Completion) -> None:
        self.seen.append(completion.rollout_id)

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(10):
            while len(self.seen) < count:
                await asyncio.sleep(0.01)
        return self.seen

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_completions_come_in_order_as_rollouts_end(run: RunLog):
    following = Following(run)
    await finish(run, "a", "b")
    await following.until(2)
    await finish(run, "c")

    assert await following.until(3) == ["a", "b", "c"]
    assert following.feed.newest == 3
    await following.die()


async def test_what_was_read_and_not_acknowledged_comes_again_after_a_restart_before_what_is_new(run: RunLog):
    first = Following(run)
    await finish(run, "a", "b", "c")
    await first.until(3)
    await first.feed.acknowledge(lambda completion: completion.rollout_id == "b")
    await first.die()
    await finish(run, "d")

    second = Following(run)

    assert await second.until(3) == ["a", "c", "d"]
    await second.die()


async def test_acknowledged_rollouts_are_freed_and_no_others(run: RunLog, log: Log):
    following = Following(run)
    await finish(run, "a", "b")
    await following.until(2)

    assert await following.feed.acknowledge(lambda completion: completion.rollout_id == "a") == 1
    assert await following.feed.acknowledge(lambda completion: completion.rollout_id == "a") == 0

    assert (await run.rollouts.counts())[State.SUCCEEDED] == 1
    assert [each.rollout_id for each in following.feed.held] == ["b"]
    await following.die()
