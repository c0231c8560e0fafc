"""Training over a whole deployment, with a trainer that is killed at the worst moments."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.support.deployment import SUPPORT, Deployment
from tests.trainer.support.trainers import Trainer

from leyden.log import Log, RunLog
from leyden.redis_server import RedisServer
from leyden.schemas import State
from leyden_trainer.decisions import KIND, Decision

pytestmark = [pytest.mark.verl, pytest.mark.timeout(1800)]

STEPS, PROMPTS, REPEATS, VALIDATIONS = 5, 2, 4, 1
ROWS = {
    "train": [{"question": f"q{number}", "turns": 1 + number % 2} for number in range(8)],
    "val": [{"question": "v0"}, {"question": "v1", "fail": True}],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, str(SUPPORT / "tiny_model.py"), str(directory)], check=True)
    return directory


async def test_a_trainer_killed_at_its_worst_moments_trains_on_the_batches_on_record_and_completes(
    tiny: Path, tmp_path: Path
):
    with (
        RedisServer(tmp_path / "redis", appendfsync="always") as server,
        Deployment(server.url, tiny, tmp_path) as deployment,
    ):
        trainer = Trainer(
            deployment,
            tmp_path,
            ROWS,
            "trainer.experiment_name=killed",
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=2",
            f"trainer.test_freq={STEPS}",
            "leyden.rollout_tries=2",
        )
        trainer.start(die="decided.3")
        trainer.died_at("decided.3")
        trainer.start(die="updated.4", how="wait")
        trainer.reached("updated.4")
        trainer.kill()
        trainer.start(die=f"saved.{STEPS}")
        trainer.died_at(f"saved.{STEPS}")
        trainer.start()
        assert trainer.wait() == 0, trainer.last_words()

        log = Log.connect(server.url)
        run = log.run("killed")
        entries = await run.steps.read()
        decisions = {(d := Decision.from_data(e.data)).step: d for e in entries if e.kind == KIND}
        assert sorted(decisions) == list(range(1, STEPS + 1))
        assert [e.data["step"] for e in entries if e.kind == KIND] == sorted(decisions), "each decided once, in order"

        lives = {step: [life for life in (1, 2, 3, 4) if trainer.trained(life, step)] for step in decisions}
        assert lives == {1: [1], 2: [1], 3: [2, 3], 4: [2, 3], 5: [3]}, "what a checkpoint holds is not trained again"
        for step, decision in decisions.items():
            for life in lives[step]:
                assert set(trainer.trained(life, step) or ()) == set(decision.keys)
            first, last = trainer.trained(lives[step][0], step), trainer.trained(lives[step][-1], step)
            assert list(first or ()) == list(last or ())
            assert first == last, "the same tokens, in the same order"
            assert len(decision.chosen) == PROMPTS * REPEATS

        _, completed = await run.completions.page(0, 1)
        tries_of_the_failing = 2
        assert completed == STEPS * PROMPTS * REPEATS + VALIDATIONS * (1 + tries_of_the_failing), "nothing ran twice"
        assert set((await run.rollouts.counts()).values()) == {0}, "all that was consumed is freed"
        assert {e.data["step"] for e in entries if e.kind == "checkpoint"} == {2, 4, STEPS}
        (validation,) = [e for e in entries if e.kind == "validation"]
        assert validation.data["step"] == STEPS, "the validation that was cut short is made up for"
        assert validation.data["metrics"]["validation/rollouts/left_out"] == 1
        assert not (await run.pause.state()).paused
        (model,) = await run.models.all()
        assert model.version == f"{decisions[1].branch}:{STEPS}"
        await log.close()


async def test_the_log_may_be_killed_while_training(tiny: Path, tmp_path: Path):
    with (
        RedisServer(tmp_path / "redis", appendfsync="always") as server,
        Deployment(server.url, tiny, tmp_path) as deployment,
    ):
        trainer = Trainer(
            deployment,
            tmp_path,
            ROWS,
            "trainer.experiment_name=outage",
            "trainer.total_training_steps=3",
            "trainer.save_freq=1",
            "trainer.test_freq=-1",
        )
        trainer.start(die="updated.1", how="wait_a_little")
        trainer.reached("updated.1")
        server.kill()
        server.start()
        assert trainer.wait() == 0, trainer.last_words()

        log = Log.connect(server.url)
        run = log.run("outage")
        assert [e.data["step"] for e in await run.steps.read() if e.kind == KIND] == [1, 2, 3]
        assert (await run.completions.page(0, 1))[1] == 3 * PROMPTS * REPEATS
        assert (await run.rollouts.counts())[State.SUCCEEDED] == 0
        await log.close()


async def test_the_gateway_and_the_controller_may_be_killed_while_training(tiny: Path, tmp_path: Path):
    steps = 3
    with (
        RedisServer(tmp_path / "redis", appendfsync="always") as server,
        Deployment(server.url, tiny, tmp_path) as deployment,
    ):
        trainer = Trainer(
            deployment,
            tmp_path,
            ROWS,
            "trainer.experiment_name=services",
            f"trainer.total_training_steps={steps}",
            "trainer.save_freq=1",
            "trainer.test_freq=-1",
        )
        log = Log.connect(server.url)
        run = log.run("services")
        trainer.start()
        for victim, ordinal in [("gateway", 2), ("controller", PROMPTS * REPEATS + 2)]:
            await completed(run, ordinal)
            deployment.kill_and_start(victim)
        assert await asyncio.to_thread(trainer.wait) == 0, trainer.last_words()

        decisions = [Decision.from_data(e.data) for e in await run.steps.read() if e.kind == KIND]
        assert [decision.step for decision in decisions] == list(range(1, steps + 1))
        consumed = [each.rollout_id for decision in decisions for each in decision.chosen]
        assert len(set(consumed)) == len(consumed) == steps * PROMPTS * REPEATS, "each once, none left out"
        assert set((await run.rollouts.counts()).values()) == {0}
        await log.close()


async def completed(run: RunLog, ordinal: int) -> None:
    """Wait until so many rollouts of a run have ended."""
    async with asyncio.timeout(600):
        while (await run.completions.page(0, 1))[1] < ordinal:
            await asyncio.sleep(0.05)
