"""Policy losses in which every rollout weighs the same. Workers load this module by `model.external_lib`.

Invariants:
- advantages arrive already divided by (trained tokens of the rollout × rows of the batch), see
  `advantage.per_rollout_scale`, and the loss is summed over tokens, so that the sum over micro batches, mini batches
  and data-parallel ranks is the loss of the whole batch, however it is split;
- all else is verl's own loss of the same kind.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import (
    compute_policy_loss_cispo,
    compute_policy_loss_vanilla,
    register_policy_loss,
)

_SUMMED = "token-sum"
"""verl's sum over tokens, times the number of data-parallel ranks, by which it averages gradients."""


@register_policy_loss("per_rollout_mean")  # type: ignore[arg-type]
def per_rollout_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = _SUMMED,
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Clipped PPO, summed; tensors are float32 (rows, response length). `loss_agg_mode` is verl's and not used."""
    return compute_policy_loss_vanilla(
        old_log_prob, log_prob, advantages, response_mask, _SUMMED, config, rollout_is_weights
    )


@register_policy_loss("cispo_per_rollout_mean")  # type: ignore[arg-type]
def cispo_per_rollout_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = _SUMMED,
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """CISPO, summed; tensors are float32 (rows, response length). `loss_agg_mode` is verl's and not used."""
    return compute_policy_loss_cispo(
        old_log_prob, log_prob, advantages, response_mask, _SUMMED, config, rollout_is_weights
    )
