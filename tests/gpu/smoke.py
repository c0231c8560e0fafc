"""What can be checked of the GPU path in a few minutes: `python -m tests.gpu.smoke`, on a machine with a GPU and torch.

Each check says what it needs. What is not installed skips the checks that need it, with the reason; a check that fails
makes the whole fail. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = 2
TRAINING_SECONDS = 180.0
PINNED_VLLM = "0.24"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it shows, the modules it needs, and the function that raises if it does not hold."""

    shows: str
    needs: tuple[str, ...]
    run: Callable[[], str]


def device() -> str:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no CUDA device: this check belongs on a machine with a GPU")
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, torch {torch.__version__}"


def rollout_sequences() -> str:
    """Rows laid out as rollouts on the GPU are what they are on the CPU."""
    import torch

    from leyden_trainer.ids import RowKey, uid
    from leyden_trainer.rollout_sequences import RolloutSequences

    torch.manual_seed(0)
    keys = [RowKey(uid(draw), repeat, row) for draw in range(4) for repeat in range(4) for row in range(3)]
    mask = (torch.rand(len(keys), 512) < 0.7).long()
    mask[:, -1] = 1
    values = torch.randn(len(keys), 512)
    here = RolloutSequences.of(keys, mask)
    there = RolloutSequences.of(keys, mask.cuda())
    gathered = there.gather(values.cuda())
    torch.testing.assert_close(gathered.cpu(), here.gather(values))
    back = there.scatter(gathered, values.cuda())
    torch.testing.assert_close(back.cpu(), here.scatter(here.gather(values), values))
    return f"{len(keys)} rows of 512 tokens"


def losses() -> str:
    """Both losses, and their gradients, are on the GPU what they are on the CPU."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    import leyden_trainer.loss  # noqa: F401  registers them

    torch.manual_seed(0)
    names = ("per_rollout_mean", "cispo_per_rollout_mean")
    for name in names:
        config = ActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_mini_batch_size=1,
            ppo_micro_batch_size_per_gpu=1,
            policy_loss=PolicyLossConfig(loss_mode=name),
        )
        old, new, advantages = torch.randn(3, 8, 64)
        mask = (torch.rand(8, 64) < 0.8).float()
        results = []
        for where in ("cpu", "cuda"):
            log_prob = new.to(where).requires_grad_()
            loss, _ = get_policy_loss_fn(name)(
                old.to(where), log_prob, advantages.to(where), mask.to(where), "token-mean", config, None
            )
            loss.backward()
            assert log_prob.grad is not None
            results.append((loss.detach().cpu(), log_prob.grad.cpu()))
        torch.testing.assert_close(results[0], results[1])
    return ", ".join(names)


def weights() -> str:
    """Tied bfloat16 weights on the GPU become a file that reads back bit for bit."""
    import asyncio

    import torch
    from safetensors.torch import load_file

    from leyden_trainer.engines.weight_file import WEIGHTS, WeightFileEngine

    tied = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    tensors = {"embed": tied, "head": tied, "norm": torch.randn(256, device="cuda", dtype=torch.bfloat16)}
    with tempfile.TemporaryDirectory() as folder:
        engine = WeightFileEngine(bucket_size=0, is_master=True, directory=folder)
        asyncio.run(engine.send_weights(iter(tensors.items()), global_steps=1))
        read = load_file(Path(folder) / WEIGHTS)
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor.cpu()), name
    return f"{len(tensors)} tensors, two of them tied"


def training(*overrides: str) -> str:
    """A few steps of training on the GPU over a whole deployment: Redis, gateway, controller, agents."""
    from leyden.redis_server import RedisServer
    from tests.trainer.support.deployment import SUPPORT, Deployment
    from tests.trainer.support.trainers import Trainer

    rows = {"train": [{"question": f"q{n}", "turns": 2} for n in range(8)], "val": [{"question": "v0"}]}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, str(SUPPORT / "tiny_model.py"), str(folder / "model")], check=True)
        with (
            RedisServer(folder / "redis") as redis,
            Deployment(redis.url, folder / "model", folder) as deployment,
        ):
            trainer = Trainer(
                deployment,
                folder,
                rows,
                "trainer.device=cuda",
                "trainer.experiment_name=smoke",
                f"trainer.total_training_steps={STEPS}",
                f"trainer.save_freq={STEPS}",
                f"trainer.test_freq={STEPS}",
                *overrides,
            )
            trainer.start()
            if trainer.wait(TRAINING_SECONDS) != 0:
                raise RuntimeError(trainer.last_words())
            if trainer.trained(1, STEPS) is None:
                raise RuntimeError(f"step {STEPS} trained on nothing: {trainer.last_words()}")
    return f"{STEPS} steps in {time.monotonic() - started:.0f} s"


def training_with_own_replicas() -> str:
    """The same with verl's own vLLM replicas, which get their weights over NCCL."""
    installed = importlib.metadata.version("vllm")
    if not installed.startswith(PINNED_VLLM):
        raise RuntimeError(f"verl 0.9.1 wants vLLM {PINNED_VLLM}, here is {installed}")
    return training(
        "leyden.engines.kind=verl",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
        "actor_rollout_ref.rollout.enforce_eager=True",
    )


VERL = ("verl", "transfer_queue", "ray", "safetensors")
CHECKS = (
    Check("torch sees a GPU", ("torch",), device),
    Check("rollouts laid out on the GPU", ("torch",), rollout_sequences),
    Check("losses and gradients on the GPU", VERL, losses),
    Check("weights from the GPU to a file", VERL, weights),
    Check("training on the GPU, model server outside", (*VERL, "redis", "fastapi"), training),
    Check("training on the GPU, verl's own vLLM", (*VERL, "redis", "fastapi", "vllm"), training_with_own_replicas),
)


def main() -> int:
    failed = False
    for check in CHECKS:
        missing = [module for module in check.needs if importlib.util.find_spec(module) is None]
        if missing:
            report("SKIP", check, f"not installed: {', '.join(missing)}")
            continue
        try:
            report("OK", check, check.run())
        except Exception as error:  # noqa: BLE001  the rest is to be checked whatever one check raises
            failed = True
            report("FAIL", check, f"{type(error).__name__}: {error}")
            traceback.print_exc(limit=-3)
            if check.run is device:
                break
    return 1 if failed else 0


def report(verdict: str, check: Check, detail: str) -> None:
    sys.stdout.write(f"{verdict:4}  {check.shows}: {detail}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
