"""The trainer's hold on its run, over a real server."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from leyden.log import Log, RunSettings
from leyden.log.errors import DrainTimeout, LeaseHeld, LeaseLost
from leyden.schemas import Model, NewRollout, State
from leyden_trainer.ids import Slot, rollout_id
from leyden_trainer.log_thread import LogThread
from leyden_trainer.session import Session

SETTINGS = RunSettings(when_paused="hold", readers=["trainer"])


class Life:
    """A trainer process, as far as its session goes."""

    def __init__(self, url: str, lease_seconds: float) -> None:
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.thread = LogThread(self._note)
        self.log = Log.connect(url)
        self.session = Session(self.log, "r", self.thread, lease_seconds=lease_seconds, log_timeout_seconds=5)

    def _note(self, failure: BaseException) -> None:
        self.failures.append(failure)
        self.failed.set()

    def die(self) -> None:
        """Stop renewing, as a killed process does."""
        self.thread.close()


async def take_over(log: Log, life: Life) -> None:
    """Give the lease to another, as if this life had been asleep for as long as it lasts."""
    lease = log.run("r").lease
    await lease.release(life.session.holder, life.session.epoch)
    await lease.acquire("another", 30)


@pytest.fixture
def life(redis_url: str) -> Iterator[Callable[..., Life]]:
    lives: list[Life] = []

    def begin(lease_seconds: float = 10) -> Life:
        lives.append(Life(redis_url, lease_seconds))
        return lives[-1]

    yield begin
    for each in lives:
        each.thread.close()


async def test_calls_are_held_from_the_beginning_until_servers_have_weights(life, log: Log):
    session = life().session
    session.open(SETTINGS)
    state = await log.run("r").pause.state()
    assert (state.paused, state.reason) == (True, "the trainer is starting")

    session.release([Model(model="m", endpoint="http://a/v1", version="b:0")])

    assert not (await log.run("r").pause.state()).paused
    assert [model.version for model in await log.run("r").models.all()] == ["b:0"]


async def test_a_second_trainer_is_refused_while_the_first_lives(life):
    life(lease_seconds=0.6).session.open(SETTINGS)

    with pytest.raises(LeaseHeld, match="has a trainer"):
        life(lease_seconds=0.6).session.open(SETTINGS)


async def test_after_a_trainer_died_the_next_waits_for_its_lease_and_has_a_higher_epoch(life):
    first = life(lease_seconds=0.6)
    first.session.open(SETTINGS)
    first.die()

    second = life(lease_seconds=0.6)
    second.session.open(SETTINGS)

    assert second.session.epoch > first.session.epoch


async def test_a_trainer_that_gave_up_its_run_is_followed_at_once(life):
    first = life(lease_seconds=30)
    first.session.open(SETTINGS)
    first.session.close(finished=False)

    started = time.monotonic()
    life(lease_seconds=30).session.open(SETTINGS)

    assert time.monotonic() - started < 5


async def test_who_lost_the_lease_can_neither_record_nor_go_on(life, log: Log):
    first = life(lease_seconds=30)
    first.session.open(SETTINGS)
    await take_over(log, first)

    with pytest.raises(LeaseLost):
        first.session.check()
    with pytest.raises(LeaseLost):
        first.session.record("batch", {}, "batch.1")
    assert await log.run("r").steps.read() == []


async def test_the_loss_of_the_lease_is_noticed_without_being_asked(life, log: Log):
    first = life(lease_seconds=0.5)
    first.session.open(SETTINGS)
    await take_over(log, first)

    assert first.failed.wait(5)
    assert isinstance(first.failures[0], LeaseLost)
    with pytest.raises(LeaseLost):
        first.session.steps()


async def test_a_step_is_recorded_once(life, log: Log):
    session = life().session
    session.open(SETTINGS)

    session.record("update", {"step": 1, "reward": 0.5}, "update.1")
    session.record("update", {"step": 1, "reward": 0.7}, "update.1")

    (entry,) = await log.run("r").steps.read()
    assert (entry.kind, entry.data["reward"], entry.epoch) == ("update", 0.5, session.epoch)


async def test_draining_waits_for_the_last_call(life, log: Log):
    begun = life()
    begun.session.open(SETTINGS)
    run = log.run("r")
    begun.session.release([])
    await run.rollouts.create(NewRollout(input=1, rollout_id="x"))
    await run.replicas.beat("g")
    await run.calls.open("x", "0", "call", "g", admin=True)
    begun.session.hold("updating")

    with pytest.raises(DrainTimeout, match="1 calls are still in flight"):
        begun.session.drain(0.2)

    drained = threading.Thread(target=begun.session.drain, args=(5,))
    drained.start()
    await run.calls.abandon("x", "0", "call")
    drained.join(5)
    assert not drained.is_alive()


async def test_rollouts_of_a_branch_that_was_left_are_ended(life, log: Log):
    session = life().session
    session.open(SETTINGS)
    run = log.run("r")
    ids = [rollout_id(Slot("r", branch, None, draw, 0), 0) for branch in ("old", "new") for draw in range(2)]
    for each in [*ids, "somebody-elses"]:
        await run.rollouts.create(NewRollout(input=1, rollout_id=each))

    assert session.abandon_other_branches("new") == 2

    states = {each: (await run.rollouts.get(each)).status.state for each in [*ids, "somebody-elses"]}
    assert list(states.values()) == [State.FAILED] * 2 + [State.QUEUING] * 3
    assert (await run.rollouts.get(ids[0])).status.error_message == "branch old was left for new"
