"""New weights: in which order servers, endpoints and calls change, over a real log."""

from collections.abc import Iterator

import pytest

from leyden.log import Log, RunSettings
from leyden.log.errors import DrainTimeout, RunPaused
from leyden.schemas import NewRollout
from leyden_trainer.engines import EngineError
from leyden_trainer.log_thread import LogThread
from leyden_trainer.session import Session
from leyden_trainer.updates import WEIGHTS, WeightUpdates

RUN = "r"


class Servers:
    """Engines that note what the log says while they load."""

    def __init__(self, session: Session, thread: LogThread) -> None:
        self.loaded: list[int] = []
        self.rests = 0
        self.broken = False
        self.paused_meanwhile: list[bool] = []
        self.port = 1
        self._look = lambda: thread.call(session.run.pause.state(), "looking", 5)

    def endpoints(self) -> list[str]:
        return [f"http://a:{self.port}/v1"]

    def load(self, step: int) -> dict[str, float]:
        self.paused_meanwhile.append(self._look().paused)
        if self.broken:
            raise EngineError("http://a is broken")
        self.port += 1  # as replicas that were started anew
        self.loaded.append(step)
        return {"weights/load_seconds": 1.0}

    def rest(self) -> None:
        self.rests += 1


class Trainer:
    """Updates over a session, with rollouts awaited or not."""

    def __init__(self, redis_url: str) -> None:
        self.thread = LogThread()
        self.session = Session(Log.connect(redis_url), RUN, self.thread, lease_seconds=30, log_timeout_seconds=5)
        self.session.open(RunSettings(when_paused="hold", readers=["trainer"]))
        self.servers = Servers(self.session, self.thread)
        self.awaited = True
        self.updates = WeightUpdates(
            self.session,
            self.servers,
            branch="b",
            model="m",
            drain_timeout_seconds=0.3,
            needed=lambda: self.awaited,
        )


@pytest.fixture
def trainer(redis_url: str) -> Iterator[Trainer]:
    trainer = Trainer(redis_url)
    yield trainer
    trainer.thread.close()


async def test_calls_are_held_while_weights_load_and_then_go_to_the_new_endpoints_and_version(trainer, log: Log):
    run = log.run(RUN)

    for step in (1, 2):
        trainer.updates.update_weights(step)
        (model,) = await run.models.all()
        assert (model.model, model.version, model.endpoint) == ("m", f"b:{step}", f"http://a:{step + 1}/v1")
        assert not (await run.pause.state()).paused

    assert trainer.servers.paused_meanwhile == [True, True]
    assert [entry.data["version"] for entry in await run.steps.read() if entry.kind == WEIGHTS] == ["b:1", "b:2"]
    assert trainer.updates.take_metrics() == {"weights/load_seconds": 1.0}
    assert trainer.updates.take_metrics() == {}


async def test_weights_that_nobody_waits_for_are_not_loaded_until_somebody_does(trainer, log: Log):
    trainer.awaited = False
    for step in (1, 2, 3):
        trainer.updates.update_weights(step)
    assert trainer.servers.loaded == []
    assert (await log.run(RUN).pause.state()).paused

    trainer.updates.bring_up_to_date()
    trainer.updates.bring_up_to_date()

    assert trainer.servers.loaded == [3]


async def test_weights_wait_for_the_last_call_in_flight(trainer, log: Log):
    trainer.updates.update_weights(1)
    run = log.run(RUN)
    await run.rollouts.create(NewRollout(input=1, rollout_id="x"))
    await run.replicas.beat("g")
    await run.calls.open("x", "0", "call", "g", admin=True)

    with pytest.raises(DrainTimeout):
        trainer.updates.update_weights(2)
    assert trainer.servers.loaded == [1]
    with pytest.raises(RunPaused):
        await run.calls.open("x", "0", "another", "g", admin=True)

    await run.calls.abandon("x", "0", "call")
    trainer.updates.bring_up_to_date()
    assert trainer.servers.loaded == [1, 2]


async def test_a_server_that_failed_leaves_calls_held_and_may_be_asked_again(trainer, log: Log):
    trainer.servers.broken = True
    with pytest.raises(EngineError):
        trainer.updates.update_weights(1)
    assert (await log.run(RUN).pause.state()).paused
    assert await log.run(RUN).models.all() == []

    trainer.servers.broken = False
    trainer.updates.bring_up_to_date()

    assert not (await log.run(RUN).pause.state()).paused


async def test_between_a_batch_and_the_next_weights_calls_are_held_and_servers_rest(trainer, log: Log):
    trainer.updates.update_weights(1)

    for _ in range(2):  # a batch that is on record is followed by the next without a load between them
        trainer.updates.sleep_replicas()

    assert trainer.servers.rests == 1
    assert (await log.run(RUN).pause.state()).paused
    trainer.updates.bring_up_to_date()
    assert trainer.servers.loaded == [1, 1], "servers that rested have no weights"
