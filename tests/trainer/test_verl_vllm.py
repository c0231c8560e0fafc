"""Training with every real part: agents, gateway, controller, verl, and vLLM on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from examples.serve_vllm import VllmServer
from tests.trainer.support.deployment import SUPPORT, Deployment
from tests.trainer.support.trainers import Trainer

from leyden.log import Log
from leyden.processes import free_port
from leyden.redis_server import RedisServer

pytestmark = [pytest.mark.verl, pytest.mark.vllm, pytest.mark.timeout(1800)]

STEPS = 3
ROWS = {"train": [{"question": f"q{number}"} for number in range(4)], "val": [{"question": "v"}]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    subprocess.run([sys.executable, str(SUPPORT / "tiny_model.py"), str(directory)], check=True)
    return directory


async def test_vllm_samples_with_the_weights_that_verl_trains(model: Path, tmp_path: Path):
    server = VllmServer(
        model=model, name="tiny", port=free_port(), log=tmp_path / "vllm.log", threads=1, kv_cache="64M", max_num_seqs=8
    )
    with (
        RedisServer(tmp_path / "redis") as redis,
        server,
        Deployment(redis.url, model, tmp_path, server.url) as deployment,
    ):
        trainer = Trainer(
            deployment,
            tmp_path,
            ROWS,
            "trainer.experiment_name=vllm",
            f"trainer.total_training_steps={STEPS}",
            "trainer.save_freq=1",
            f"trainer.test_freq={STEPS}",
            "actor_rollout_ref.actor.optim.lr=1e-2",
        )
        trainer.start()
        assert trainer.wait() == 0, trainer.last_words()

        log = Log.connect(redis.url)
        run = log.run("vllm")
        updates = [entry.data["metrics"] for entry in await run.steps.read() if entry.kind == "update"]
        assert len(updates) == STEPS
        for metrics in updates:
            assert metrics["training/rollouts/used"] == 8
            # Large updates: with stale weights, or a stale prefix cache, sampler and trainer would differ by far more.
            assert metrics["training/rollout_probs_diff_max"] < 1e-4
            assert metrics["actor/grad_norm"] > 0
        versions = [entry.data["version"] for entry in await run.steps.read() if entry.kind == "weights"]
        assert [version.split(":")[1] for version in versions] == ["0", "1", "2", "3"]
        assert set((await run.rollouts.counts()).values()) == {0}
        await log.close()
