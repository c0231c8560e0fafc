"""A verl checkpoint engine that writes the actor's weights into a Hugging Face model directory.

Loaded into the actor's workers through `checkpoint_engine.custom_backend_module`.

Invariants:
- at any moment the directory holds one whole model: `model.safetensors` is replaced by renaming, after it is durable;
- gathering a parameter is a collective, so every rank drains the weights, and rank 0 alone writes.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

BACKEND = "leyden_weight_file"
WEIGHTS = "model.safetensors"


@CheckpointEngineRegistry.register(BACKEND)  # pyright: ignore[reportAttributeAccessIssue]
class WeightFileEngine(CheckpointEngine):
    """Writes weights where servers outside of verl can read them; receives none.

    `directory` exists and holds the model's configuration and tokenizer.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, directory: str = "") -> None:
        self._writes = is_master
        self._directory = Path(directory)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        started = time.monotonic()
        gathered: dict[str, torch.Tensor] = {}
        for name, weight in weights:
            if self._writes:  # a copy for each name: tied parameters share memory, which safetensors refuses
                gathered[name] = weight.detach().to("cpu", copy=True).contiguous()
        if not self._writes:
            return {}
        write_weights(self._directory, gathered, str(global_steps))
        return {"weights/write_seconds": time.monotonic() - started, "weights/tensors": len(gathered)}

    def prepare(self) -> dict[str, Any]:
        return {}

    def init_process_group(self, **kwargs: Any) -> None:
        pass

    def finalize(self) -> None:
        pass

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    async def receive_weights(self, global_steps: int | None = None) -> Any:
        raise NotImplementedError("servers outside of verl read the weights from a file")


def write_weights(directory: Path, weights: dict[str, torch.Tensor], version: str) -> None:
    """Replace the weights of the model in `directory` by `weights`, and any shards that it had."""
    temporary = directory / f".{WEIGHTS}.writing"
    save_file(weights, temporary, metadata={"format": "pt", "version": version})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    (directory / f"{WEIGHTS}.index.json").unlink(missing_ok=True)
    temporary.replace(directory / WEIGHTS)
    for shard in directory.glob("model-*-of-*.safetensors"):
        shard.unlink()
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
