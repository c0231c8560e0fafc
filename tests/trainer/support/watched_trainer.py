"""The trainer, with what tests need to see and to break: `python -m … ROWS_FILE override…`.

WATCH_FOLDER gets one file a life and step with what was trained on. DIE names a moment: `decided.N` is after the batch
of step N is on record, `updated.N` after its update, `saved.N` after its checkpoint. There, the process writes
`reached` and kills itself, or waits to be killed if DIE_HOW is `wait`; with `wait_a_little` it goes on.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import transfer_queue as tq

from leyden_trainer.config import load
from leyden_trainer.entrypoint import train
from leyden_trainer.task_runner import TaskRunner


def reach(moment: str) -> None:
    if os.environ.get("DIE") != moment:
        return
    (Path(os.environ["WATCH_FOLDER"]) / f"reached.{moment}").touch()
    if os.environ["DIE_HOW"] == "wait_a_little":
        time.sleep(2)
        return
    if os.environ["DIE_HOW"] == "wait":
        time.sleep(120)
    os.kill(os.getpid(), signal.SIGKILL)


def watched() -> type:
    """Made late: verl may be imported only where the platform is known."""
    from leyden_trainer.trainer import LeydenTrainerSync

    class WatchedTrainer(LeydenTrainerSync):
        def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
            reach(f"decided.{self.global_steps}")
            return super()._compute_old_log_prob(batch, metrics)

        def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
            keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
            data: Any = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["responses", "prompts"])
            rows = {
                key: [prompt.tolist(), response.tolist()]
                for key, prompt, response in zip(
                    keys, data["prompts"].unbind(), data["responses"].unbind(), strict=True
                )
            }
            place = f"{self.training.session.epoch}.{self.global_steps}.json"
            (Path(os.environ["WATCH_FOLDER"]) / place).write_text(json.dumps(rows))
            return super()._update_actor(batch, metrics)

        def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> Any:
            batch = super()._step_once(metrics, timing_raw, sample_batch_size)
            reach(f"updated.{self.global_steps}")
            return batch

        def committed(self, step: int, folder: str) -> None:
            super().committed(step, folder)
            reach(f"saved.{step}")

    return WatchedTrainer


class WatchedRunner(TaskRunner):
    def run(self, config: Any) -> None:
        self.trainer_class = watched()
        super().run(config)


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[1]).read_text())
    from tests.trainer.support.watched_trainer import WatchedRunner as Importable

    train(load(sys.argv[2:]), rows["train"], rows["val"], task_runner=Importable)
