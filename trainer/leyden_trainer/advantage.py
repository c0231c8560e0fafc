"""Advantages and weights per rollout, however many rows it became.

Invariants:
- an estimator sees each rollout once, as one sequence with its reward at the last trained token, so every estimator
  that verl's v1 trainer can feed works per rollout;
- padding rows take no part: they are not estimated with, not counted, and have advantage 0;
- advantages are scaled for the loss only while the actor is updated: before and after, they are the estimator's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.utils.padding import response_to_nested

from leyden_trainer.checks import PER_ROLLOUT_LOSSES
from leyden_trainer.ids import RowKey
from leyden_trainer.rollout_sequences import RolloutSequences

_PER_TOKEN = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
"""Fields (rows, response length) that estimators may ask for beside mask and rewards."""
_PER_ROW = ("reward_baselines",)
_FIELDS = ("uid", "response_mask", "rm_scores", "rollout_log_probs", "ref_log_prob", *_PER_TOKEN)
_SAME = 1e-5


class RewardsDiffer(ValueError):
    """The rows of one rollout do not have the same reward."""


def add_advantages(data: DataProto, keys: Sequence[RowKey], **estimator: Any) -> dict[str, float]:
    """Put `advantages` and `returns`, float32 (rows, response length), into `data`; returns metrics.

    `data.batch` holds for real rows only: `response_mask`, `token_level_scores` (each row has its rollout's reward),
    `token_level_rewards` (the same, less any penalty); `data.non_tensor_batch` holds `uid`. `estimator` is what verl's
    `compute_advantage` takes beside the data.

    Raises:
        RewardsDiffer: names the rollout and its rewards.
    """
    batch = data.batch
    sequences = RolloutSequences.of(keys, batch["response_mask"])
    scores = _one_score_each(batch["token_level_scores"].sum(dim=-1), keys, sequences)
    mask = sequences.gather(batch["response_mask"])
    rewards = sequences.gather(batch["token_level_rewards"] - batch["token_level_scores"])
    rewards[torch.arange(len(scores)), sequences.last_trained(mask)] += scores
    fields = {"response_mask": mask, "token_level_rewards": rewards, "token_level_scores": rewards}
    fields |= {name: sequences.gather(batch[name]) for name in _PER_TOKEN if name in batch}
    fields |= {name: batch[name][sequences.first_row] for name in _PER_ROW if name in batch}
    first = sequences.first_row.cpu().numpy()
    rollouts = DataProto(
        batch=TensorDict(fields, batch_size=len(scores)),
        non_tensor_batch={name: values[first] for name, values in data.non_tensor_batch.items()},
    )
    estimated = compute_advantage(rollouts, **estimator).batch
    for name in ("advantages", "returns"):
        batch[name] = sequences.scatter(estimated[name].float() * mask, batch["response_mask"])
    rows = torch.bincount(sequences.of_row)
    return {
        "training/rollouts": float(len(scores)),
        "training/rows": float(len(keys)),
        "training/rows_per_rollout/max": float(rows.max()),
    }


def per_rollout_scale(keys: Sequence[RowKey], trained_tokens: torch.Tensor, is_padding: Sequence[bool]) -> torch.Tensor:
    """float32 (rows,): 1 / (trained tokens of the row's rollout × real rows in the batch); 0 for padding.

    Summed over tokens, what is scaled by it gives every rollout the weight 1 / (real rows), whatever its length and
    number of rows. `trained_tokens`: (rows,).
    """
    rollout_tokens: dict[tuple[str, int], float] = {}
    for key, tokens in zip(keys, trained_tokens.tolist(), strict=True):
        rollout_tokens[key.rollout] = rollout_tokens.get(key.rollout, 0) + tokens
    real_rows = len(is_padding) - sum(is_padding)
    scale = [
        0.0 if padding else 1.0 / (max(rollout_tokens[key.rollout], 1.0) * real_rows)
        for key, padding in zip(keys, is_padding, strict=True)
    ]
    return torch.tensor(scale, dtype=torch.float32, device=trained_tokens.device)


class PerRollout:
    """Makes a v1 trainer of verl's estimate, and with a loss per rollout weigh, per rollout. Goes before its class."""

    config: DictConfig
    kl_ctrl_in_reward: Any

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        algorithm = self.config.algorithm
        if not algorithm.get("enable_rollout_level_advantage", True):
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        where: dict[str, Any] = {"keys": batch.keys, "partition_id": batch.partition_id}
        stored = tq.kv_batch_get(**where, select_fields=list(_FIELDS))
        nested_mask = stored["response_mask"]
        padded = stored.to_padded_tensor()
        uids = np.array(padded.pop("uid").tolist(), dtype=object)
        real = np.array([not _is_padding(tag) for tag in batch.tags])
        data = DataProto(batch=padded, non_tensor_batch={"uid": uids}).select_idxs(real)
        written = self._with_rewards(data, metrics)
        keys = [RowKey.parse(key) for key, is_real in zip(batch.keys, real, strict=True) if is_real]
        metrics |= add_advantages(
            data,
            keys,
            adv_estimator=algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            num_repeat=self.config.actor_rollout_ref.rollout.n,
            norm_adv_by_std_in_grpo=algorithm.get("norm_adv_by_std_in_grpo", True),
            config=algorithm,
        )
        fields = {}
        for name in ("advantages", "returns", *written):
            values = data.batch[name]
            everywhere = torch.zeros((len(batch), values.shape[1]), dtype=values.dtype)
            everywhere[torch.from_numpy(real)] = values
            fields[name] = response_to_nested(everywhere, nested_mask)
        return tq.kv_batch_put(**where, fields=TensorDict(fields, batch_size=len(batch)))

    def _with_rewards(self, data: DataProto, metrics: dict[str, Any]) -> list[str]:
        """Add token-level scores and rewards, and correct for the sampler's policy; returns which fields to keep."""
        algorithm = self.config.algorithm
        data.batch["token_level_scores"] = data.batch["rm_scores"]
        data.batch["token_level_rewards"] = data.batch["rm_scores"]
        written = []
        if algorithm.use_kl_in_reward:
            _, kl_metrics = apply_kl_penalty(data, kl_ctrl=self.kl_ctrl_in_reward, kl_penalty=algorithm.kl_penalty)
            metrics |= kl_metrics
            written.append("token_level_rewards")
        correction = algorithm.get("rollout_correction", None)
        bypassed = correction is not None and correction.get("bypass_mode", False)
        if correction is not None and not bypassed and "rollout_log_probs" in data.batch:
            corrected, correction_metrics = compute_rollout_correction_and_add_to_batch(data, correction)
            data.batch = corrected.batch
            metrics |= correction_metrics
            written += ["response_mask", *(["rollout_is_weights"] if "rollout_is_weights" in data.batch else [])]
        return written

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        update: Callable[..., KVBatchMeta] = super()._update_actor  # type: ignore[misc]
        if self.config.actor_rollout_ref.actor.policy_loss.loss_mode not in PER_ROLLOUT_LOSSES:
            return update(batch, metrics)
        where: dict[str, Any] = {"keys": batch.keys, "partition_id": batch.partition_id}
        stored = tq.kv_batch_get(**where, select_fields=["advantages", "response_mask"])
        advantages, mask = stored["advantages"], stored["response_mask"]
        trained_tokens = torch.stack([row.sum() for row in torch.unbind(mask)])
        keys = [RowKey.parse(key) for key in batch.keys]
        scale = per_rollout_scale(keys, trained_tokens, [_is_padding(tag) for tag in batch.tags])
        scaled = torch.nested.as_nested_tensor(
            [row * weight for row, weight in zip(torch.unbind(advantages), scale, strict=True)], layout=torch.jagged
        )
        tq.kv_batch_put(**where, fields=TensorDict({"advantages": scaled}, batch_size=len(batch)))
        try:
            return update(batch, metrics)
        finally:
            tq.kv_batch_put(**where, fields=TensorDict({"advantages": advantages}, batch_size=len(batch)))


def _one_score_each(scores: torch.Tensor, keys: Sequence[RowKey], sequences: RolloutSequences) -> torch.Tensor:
    """(rows,) → (rollouts,)."""
    own = scores[sequences.first_row]
    differs = (scores - own[sequences.of_row]).abs() > _SAME * own[sequences.of_row].abs().clamp(min=1.0)
    if differs.any():
        row = int(differs.nonzero()[0, 0])
        rollout = keys[row].rollout
        found = sorted({float(score) for key, score in zip(keys, scores, strict=True) if key.rollout == rollout})
        raise RewardsDiffer(f"the rows of rollout {rollout[0]}_{rollout[1]} have several rewards: {found}")
    return own


def _is_padding(tag: dict[str, Any]) -> bool:
    return bool(tag.get("is_padding", False))
