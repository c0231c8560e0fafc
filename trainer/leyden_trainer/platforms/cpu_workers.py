"""verl's workers and its FSDP2 engine on the CPU."""

import os
from typing import Any

import torch.distributed
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker


def join_process_group() -> None:
    """Join the workers' process group, unless this process has.

    verl would ask for `cpu:gloo,cpu:gloo`, one backend for the host and one for the device, which torch refuses when
    both are the CPU; it leaves an existing group alone.
    """
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "cpu:gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )


class CpuActorRolloutRefWorker(ActorRolloutRefWorker):
    """Actor and reference policy on the CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        join_process_group()
        super().__init__(*args, **kwargs)


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CpuFSDP2Engine(FSDPEngineWithLMHead):
    """FSDP2 whose reference policy is not offloaded: that pins memory, for which there must be an accelerator."""

    def _build_fsdp_module(self, module: Any) -> Any:
        config: Any = self.engine_config  # pyright: ignore[reportAttributeAccessIssue]
        forward_only, config.forward_only = config.forward_only, False
        try:
            return super()._build_fsdp_module(module)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            config.forward_only = forward_only
