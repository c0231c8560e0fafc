"""Whether mini batches can be shared among ranks, and a rank's share be divided into micro batches, as verl needs it.

verl itself finds out only when the first step's rollouts have been paid for. Imports neither verl nor torch.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from omegaconf import DictConfig, OmegaConf

_BATCH = "data.train_batch_size"
_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
_REPEATS = "actor_rollout_ref.rollout.n"
_MICRO = {
    "actor_rollout_ref.actor.ppo_micro_batch_size": "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
}
"""Sizes of micro batches by their old names, which workers read with `_per_gpu` behind them; and what makes micro
batches of a number of tokens instead."""
# The second of these is verl's older name for the first.
_SEQUENCE_PARALLEL = (max, ("fsdp_config.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"))
_MODEL_PARALLEL = (
    prod,
    tuple(f"megatron.{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context")),
)
_PARALLEL: dict[str, tuple[Callable[[list[int]], int], tuple[str, ...]]] = {
    "fsdp": _SEQUENCE_PARALLEL,
    "fsdp2": _SEQUENCE_PARALLEL,
    "megatron": _MODEL_PARALLEL,
}
"""By strategy, how many accelerators make one rank."""


def problems(config: DictConfig) -> list[str]:
    """What is wrong with the sizes, each by its name and value; [] if nothing is."""
    sizes = {name: _at(config, name) for name in (_BATCH, _MINI, _REPEATS)}
    if wrong := [_not_a_size(name, size) for name, size in sizes.items() if not _is_size(size)]:
        return wrong
    batch, mini, repeats = sizes.values()
    found = [f"{_BATCH} is {batch}: it must be at least {_MINI}, {mini}"] if batch < mini else []
    rows, ranks = mini * repeats, _ranks(config)
    made = f"a mini batch has {rows} rows ({_MINI}, {mini}, times {_REPEATS}, {repeats})"
    if rows % ranks:
        return [*found, f"{made}, which {ranks} ranks can't share evenly"]
    share = rows // ranks
    for old, dynamic in _MICRO.items():
        if _at(config, dynamic):
            continue
        name = f"{old}_per_gpu"
        size = _at(config, name)
        if _at(config, old) is not None:
            found.append(f"{old} is {_at(config, old)}: verl's workers don't read it; set {name} instead")
        elif not _is_size(size):
            found.append(f"{_not_a_size(name, size)}, or {dynamic} true")
        elif share % size:
            found.append(f"{name} is {size}: {made}, {share} for each of {ranks} ranks, which it does not divide")
    return found


def _ranks(config: DictConfig) -> int:
    """Data-parallel ranks of the actor; 1, which divides everything, where the configuration does not tell."""
    actor = "actor_rollout_ref.actor"
    together, names = _PARALLEL.get(_at(config, f"{actor}.strategy"), (max, ()))
    parallel = [_at(config, f"{actor}.{name}") for name in names]
    accelerators = [_at(config, name) for name in ("trainer.n_gpus_per_node", "trainer.nnodes")]
    if not parallel or not all(map(_is_size, parallel + accelerators)):
        return 1
    return max(1, prod(accelerators) // together(parallel))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _not_a_size(name: str, value: Any) -> str:
    return f"{name} is {value!r}: it must be a whole number above 0"


def _at(config: DictConfig, name: str) -> Any:
    return OmegaConf.select(config, name)
