"""Starts trainers as processes of their own, on the CPU, with a tiny model."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

from tests.trainer.support.deployment import SUPPORT, Deployment

from leyden.processes import own_group_until_parent_dies

_PATHS = os.pathsep.join([str(SUPPORT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])


class Trainer:
    """One life of a trainer after another, over one deployment, all with the same settings."""

    def __init__(self, deployment: Deployment, folder: Path, rows: dict[str, list[Any]], *overrides: str) -> None:
        self.folder = folder
        self.watch = folder / "watch"
        self.checkpoints = folder / "checkpoints"
        self.watch.mkdir(parents=True, exist_ok=True)
        (folder / "rows.json").write_text(json.dumps(rows))
        self._environment = deployment.environment | {"WATCH_FOLDER": str(self.watch), "PYTHONPATH": _PATHS}
        # Ray's sockets have paths of at most 107 characters.
        ray_folder = tempfile.mkdtemp(prefix="leyden-ray-", dir="/tmp")
        weakref.finalize(self, shutil.rmtree, ray_folder, ignore_errors=True)
        self._overrides = [
            "trainer.device=cpu",
            "trainer.n_gpus_per_node=1",
            "trainer.total_epochs=100",
            "trainer.val_before_train=False",
            f"trainer.default_local_dir={self.checkpoints}",
            "data.train_batch_size=2",
            "data.max_prompt_length=256",
            "data.max_response_length=64",
            "data.seed=1",
            f"actor_rollout_ref.model.path={deployment.model}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            "actor_rollout_ref.actor.optim.lr=3e-3",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.n=4",
            "leyden.engines.kind=external",
            "leyden.engines.model=tiny",
            f"leyden.engines.urls=[{deployment.server_url}]",
            f"leyden.engines.weights_dir={folder / 'served'}",
            f"leyden.local.command=[{sys.executable},{SUPPORT / 'agent.py'}]",
            "+leyden.local.env_map.TASK=input",
            "leyden.lease_seconds=5",
            "leyden.progress_timeout_seconds=300",
            f"+ray_kwargs.ray_init._temp_dir={ray_folder}",
            "+ray_kwargs.ray_init.object_store_memory=100000000",
            "+ray_kwargs.ray_init.include_dashboard=False",
            *overrides,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0

    def start(self, *, die: str = "", how: str = "kill") -> None:
        self.lives += 1
        module = ["-m", "tests.trainer.support.watched_trainer", str(self.folder / "rows.json")]
        self._process = subprocess.Popen(
            ["nice", "-n", "5", sys.executable, *module, *self._overrides],
            env=self._environment | {"DIE": die, "DIE_HOW": how},
            stdout=self._output.open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=own_group_until_parent_dies,
        )

    def wait(self, timeout_seconds: float = 600) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the trainer did not end: {self.last_words()}") from None

    def died_at(self, moment: str) -> None:
        """Wait until the trainer has killed itself where `DIE` said."""
        assert self.wait() != 0
        assert (self.watch / f"reached.{moment}").exists(), f"it died before {moment}: {self.last_words()}"

    def reached(self, moment: str, timeout_seconds: float = 600) -> None:
        """Wait until a moment named by `DIE` has come."""
        deadline = time.monotonic() + timeout_seconds
        while not (self.watch / f"reached.{moment}").exists():
            assert self._process is not None
            assert self._process.poll() is None, f"the trainer ended before {moment}: {self.last_words()}"
            assert time.monotonic() < deadline, f"{moment} was not reached: {self.last_words()}"
            time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL the process that the user started; what it started is Ray's to clean up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    def trained(self, epoch: int, step: int) -> dict[str, Any] | None:
        """What a life trained on in a step, by row key in the batch's order; None if it did not."""
        file = self.watch / f"{epoch}.{step}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def last_words(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]

    @property
    def _output(self) -> Path:
        return self.folder / f"trainer.{self.lives}.log"
