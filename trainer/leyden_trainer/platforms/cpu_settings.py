"""What a verl configuration must say for training on the CPU, so that `trainer.device=cpu` is all that a user says.

Imports neither verl nor torch: it runs before they are loaded.
"""

import os
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden_trainer.settings import SettingsInvalid

_FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}

REQUIRED: dict[str, Any] = {
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.mixed_precision": _FP32,
    "actor_rollout_ref.actor.fsdp_config.param_offload": False,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": False,
    "actor_rollout_ref.ref.strategy": "fsdp2",
    "actor_rollout_ref.ref.use_torch_compile": False,
    "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.ref.fsdp_config.mixed_precision": _FP32,
    "actor_rollout_ref.ref.fsdp_config.param_offload": False,
}
"""Settings with no alternative on the CPU: flash attention, compilation, bf16 and offloading are a GPU's."""

VERL_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "trainer.n_gpus_per_node": (8, 1),
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": (8, 1),
}
"""Settings whose default, the first value, is meant for a large machine; anything else a user has chosen stays."""

ENVIRONMENT: dict[str, str] = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "leyden_trainer.platforms.cpu",
    "TQ_NUM_THREADS": "1",
}
"""Variables of every process that imports verl."""

_NO_CRITIC = (
    "trainer.device is cpu: there verl can't train a critic, whose model it loads with FlashAttention 2 only; "
    "set algorithm.adv_estimator to one without a critic, such as grpo, and critic.enable to false"
)

_RAY_START_SECONDS = "300"
"""Ray gives its own processes 30 seconds to come up, which a small machine that does other things can need."""


def choose_defaults(config: DictConfig) -> None:
    """Where verl's defaults stand that are meant for a large machine, put those for this one."""
    with open_dict(config):
        for key, (default, value) in VERL_DEFAULTS.items():
            if OmegaConf.select(config, key) == default:
                OmegaConf.update(config, key, value)


def prepare(config: DictConfig) -> None:
    """Fit `config` and this process's environment to the CPU; must run before verl is imported.

    Ray gets as many logical CPUs and GPUs as verl's actors ask for, whatever the machine has: they share its cores.
    torch computes on all of them, unless OMP_NUM_THREADS says otherwise; Ray would give it one.

    Raises:
        SettingsInvalid: what is asked for can't be done on the CPU.
    """
    if config.critic.enable or (config.critic.enable is None and config.algorithm.adv_estimator == "gae"):
        raise SettingsInvalid([_NO_CRITIC])
    choose_defaults(config)
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("RAY_raylet_start_wait_time_s", _RAY_START_SECONDS)
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # empty hides Ray's logical GPUs as well
    processes = config.trainer.n_gpus_per_node * config.trainer.nnodes
    with open_dict(config):
        for key, value in REQUIRED.items():
            OmegaConf.update(config, key, value, force_add=True)
        ray_init = config.ray_kwargs.ray_init
        ray_init.setdefault("num_gpus", processes)
        ray_init.setdefault("include_dashboard", False)
        if ray_init.get("num_cpus") is None:
            ray_init.num_cpus = max(os.cpu_count() or 1, 6 + 3 * processes)
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
        given = ray_init.runtime_env.get("env_vars") or {}
        ray_init.runtime_env.env_vars = {"OMP_NUM_THREADS": threads, **given, **ENVIRONMENT}
