"""verl's platform for machines without an accelerator.

Loaded into every process that imports verl through `VERL_USE_EXTERNAL_MODULES`, and chosen by `VERL_PLATFORM=cpu`.

Invariants:
- `device_module` offers what verl's FSDP path asks of `torch.cuda`; memory numbers are those of the process and the
  machine, in bytes;
- Ray counts processes as logical GPUs, so that verl's resource pools place them as they do everywhere else.
"""

import contextlib
import os
import resource
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for what has no meaning without an accelerator: caches, streams, device selection."""


def _process_bytes(*args: Any, **kwargs: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _machine_bytes(*args: Any) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


class CpuDeviceModule(types.ModuleType):
    """The part of `torch.cuda`'s surface that verl uses; what is not named here is `torch.cpu`'s."""

    empty_cache = synchronize = set_device = staticmethod(_nothing)
    reset_peak_memory_stats = ipc_collect = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(_nothing)
    memory_allocated = memory_reserved = staticmethod(_process_bytes)
    max_memory_allocated = max_memory_reserved = staticmethod(_process_bytes)
    mem_get_info = staticmethod(_machine_bytes)
    # verl's checkpoints save and load the device's generator through the device module.
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def get_device_name(*args: Any) -> str:
        return "CPU"

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


_DEVICE_MODULE = CpuDeviceModule("leyden_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One CPU device; `gloo` between processes; no caches, streams, IPC or profiler."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # always there, so never detected: it must be asked for

    def current_device(self) -> Any:
        return torch.device("cpu")  # verl only gives it to `.to()` and `device=`, where an index would mean CUDA

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
