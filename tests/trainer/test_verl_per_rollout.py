"""One advantage and one weight a rollout, however many rows it became: against plain Python, and against verl's own."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

import leyden_trainer.loss  # noqa: F401  registers the losses
from leyden_trainer import advantage
from leyden_trainer.advantage import PerRollout, RewardsDiffer, add_advantages, per_rollout_scale
from leyden_trainer.ids import RowKey
from leyden_trainer.rollout_sequences import RolloutSequences

pytestmark = pytest.mark.verl

ESTIMATORS = [
    "grpo",
    "gae",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
]
ESTIMATORS += ["grpo_vectorized", "grpo_passk"]
LOSSES = ["per_rollout_mean", "cispo_per_rollout_mean"]


@dataclass(frozen=True)
class Rollout:
    """A rollout as generated: a mask for each of its rows, and its reward."""

    uid: str
    repeat: int
    masks: tuple[tuple[int, ...], ...]
    reward: float


masks = st.lists(st.sampled_from([1, 1, 0]), min_size=1, max_size=4).map(lambda mask: (*mask[:-1], 1))
groups = st.lists(
    st.lists(
        st.tuples(st.lists(masks, min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=3
    ),
    min_size=1,
    max_size=2,
).map(
    lambda drawn: [
        Rollout(f"d{draw}", repeat, tuple(rows), reward)
        for draw, group in enumerate(drawn)
        for repeat, (rows, reward) in enumerate(group)
    ]
)


def rows_of(rollouts):
    return [
        (RowKey(rollout.uid, rollout.repeat, row), mask, rollout.reward)
        for rollout in rollouts
        for row, mask in enumerate(rollout.masks)
    ]


def padded(rows):
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def as_batch(rollouts, order=None, dtype=torch.float32):
    """Rows in some order, as `add_advantages` wants them; values, penalties and the like depend on the token alone."""
    rows = rows_of(rollouts)
    rows = [rows[index] for index in order] if order else rows
    mask = padded([mask for _, mask, _ in rows])
    scores = torch.zeros(mask.shape, dtype=dtype)
    for row, (_, row_mask, reward) in enumerate(rows):
        scores[row, len(row_mask) - 1] = reward
    data = DataProto(
        batch=TensorDict(
            {"response_mask": mask, "token_level_scores": scores, "token_level_rewards": scores}, len(rows)
        ),
        non_tensor_batch={"uid": np.array([key.uid for key, _, _ in rows], dtype=object)},
    )
    return data, [key for key, _, _ in rows]


def estimate(data, keys, estimator):
    config = OmegaConf.create({"gamma": 0.9, "lam": 0.8, "norm_adv_by_std_in_grpo": True})
    return add_advantages(data, keys, adv_estimator=estimator, gamma=0.9, lam=0.8, num_repeat=2, config=config)


def trained_values(data, keys, name="advantages"):
    """What each rollout's trained tokens got, in the order of its rows."""
    found = {}
    for index in sorted(range(len(keys)), key=lambda index: keys[index].row):
        mask = data.batch["response_mask"][index].bool()
        found.setdefault(keys[index].rollout, []).extend(data.batch[name][index][mask].tolist())
    return found


# Advantages.


@given(groups)
def test_group_relative_advantages_are_those_of_the_rollouts_not_of_their_rows(rollouts):
    data, keys = as_batch(rollouts)
    estimate(data, keys, "grpo")
    for rollout in rollouts:
        rewards = [other.reward for other in rollouts if other.uid == rollout.uid]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
        expected = (rollout.reward - mean) / (std + 1e-6)
        got = trained_values(data, keys)[rollout.uid, rollout.repeat]
        assert got == pytest.approx([expected] * sum(map(sum, rollout.masks)), abs=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=25)
@given(rollouts=groups, data=st.data())
def test_cutting_a_rollout_into_rows_changes_no_advantage(estimator, rollouts, data):
    whole = [
        Rollout(
            rollout.uid, rollout.repeat, (tuple(token for mask in rollout.masks for token in mask),), rollout.reward
        )
        for rollout in rollouts
    ]
    order = data.draw(st.permutations(range(len(rows_of(rollouts)))))
    # In double precision: where a group's rewards are equal, verl divides what rounding leaves by 1e-6.
    (cut, cut_keys), (one, one_keys) = as_batch(rollouts, order, torch.float64), as_batch(whole, dtype=torch.float64)
    for batch, keys in ((cut, cut_keys), (one, one_keys)):
        add_token_fields(batch, keys)
        estimate(batch, keys, estimator)
    for name in ("advantages", "returns"):
        expected = trained_values(one, one_keys, name)
        for rollout, values in trained_values(cut, cut_keys, name).items():
            assert values == pytest.approx(expected[rollout], abs=1e-4)
    assert cut.batch["advantages"][cut.batch["response_mask"] == 0].abs().sum() == 0


def add_token_fields(data, keys):
    """Values and penalties for each trained token, the same wherever its rollout was cut."""
    mask = data.batch["response_mask"]
    values, penalties = (torch.zeros(mask.shape, dtype=data.batch["token_level_scores"].dtype) for _ in range(2))
    counted = {}
    for index in sorted(range(len(keys)), key=lambda index: keys[index].row):
        for column in mask[index].nonzero().flatten().tolist():
            rollout = keys[index].rollout
            counted[rollout] = counted.get(rollout, 0) + 1
            values[index, column] = math.sin(counted[rollout] + keys[index].repeat)
            penalties[index, column] = 0.01 * math.cos(counted[rollout])
    data.batch["values"] = values
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - penalties


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_rollout_of_one_row_gets_what_verl_gives_that_row(estimator):
    rollouts = [Rollout("d0", n, (mask,), float(n % 2)) for n, mask in enumerate([(1, 1, 1), (1, 0, 1), (1, 1, 1)])]
    ours, keys = as_batch(rollouts)
    verls, _ = as_batch(rollouts)
    for batch in (ours, verls):
        add_token_fields(batch, keys)
    config: Any = OmegaConf.create({"gamma": 0.9, "lam": 0.8, "norm_adv_by_std_in_grpo": True})
    estimate(ours, keys, estimator)
    verls = compute_advantage(verls, AdvantageEstimator(estimator), gamma=0.9, lam=0.8, num_repeat=2, config=config)
    for name in ("advantages", "returns"):
        theirs = verls.batch[name] * verls.batch["response_mask"]
        assert torch.allclose(ours.batch[name], theirs, atol=1e-5)


def test_a_rollout_whose_rows_disagree_on_the_reward_is_refused():
    data, keys = as_batch([Rollout("d0", 0, ((1,), (1,)), 1.0), Rollout("d0", 1, ((1,),), 0.0)])
    data.batch["token_level_scores"][1] = 0.5
    with pytest.raises(RewardsDiffer, match=r"d0_0 have several rewards: \[0\.5, 1\.0\]"):
        estimate(data, keys, "grpo")


def test_a_rollout_whose_tokens_were_all_rejected_still_counts_in_its_group():
    data, keys = as_batch([Rollout("d0", n, ((1, 1),), float(n)) for n in range(2)])
    data.batch["response_mask"][0] = 0
    estimate(data, keys, "rloo")
    assert data.batch["advantages"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


@given(groups, st.randoms(use_true_random=False))
def test_what_is_gathered_from_rows_comes_back_to_them(rollouts, shuffled):
    rows = rows_of(rollouts)
    shuffled.shuffle(rows)
    mask = padded([row_mask for _, row_mask, _ in rows])
    values = torch.arange(1.0, mask.numel() + 1).view(mask.shape)
    sequences = RolloutSequences.of([key for key, _, _ in rows], mask)
    gathered = sequences.gather(values * mask)
    assert gathered.sum() == (values * mask).sum()
    assert torch.equal(sequences.scatter(gathered, mask), values * mask)
    assert sequences.place.shape[0] == len(rollouts)


# The loss. Written down once more, the plain way.


def plain_loss(rows, kind, low, high, dual):
    """The contract's formula over (rollout, advantage, tokens), a token being (old log prob, new log prob, trained)."""
    tokens_of = {}
    for rollout, _, tokens in rows:
        tokens_of[rollout] = tokens_of.get(rollout, 0) + sum(trained for _, _, trained in tokens)
    total = 0.0
    for rollout, value, tokens in rows:
        scaled = value / (tokens_of[rollout] * len(rows))
        for old, new, trained in tokens:
            if not trained:
                continue
            ratio = math.exp(new - old)
            clipped = min(max(ratio, 1 - low), 1 + high)
            if kind == "cispo_per_rollout_mean":
                total += -clipped * scaled * new
            elif scaled < 0:
                total += min(max(-scaled * ratio, -scaled * clipped), -scaled * dual)
            else:
                total += max(-scaled * ratio, -scaled * clipped)
    return total


def actor_config(kind):
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        policy_loss=PolicyLossConfig(loss_mode=kind),
    )


def nested(rows, dtype=torch.float32):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def loss_inputs(rows, scale):
    """What verl's workers get for these rows, and the new log probs as a model would give them, with gradients."""
    lengths = [len(tokens) for _, _, tokens in rows]
    old = nested([[old for old, _, _ in tokens] for _, _, tokens in rows])
    masks = [[trained for _, _, trained in tokens] for _, _, tokens in rows]
    advantages = [
        [value * float(weight) * trained for trained in mask]
        for (_, value, _), mask, weight in zip(rows, masks, scale, strict=True)
    ]
    data = TensorDict(
        {
            "prompts": nested([[1, 1]] * len(rows), torch.int64),
            "responses": nested([[1] * length for length in lengths], torch.int64),
            "response_mask": nested(masks, torch.int64),
            "old_log_probs": old,
            "advantages": nested(advantages),
            "row": torch.arange(len(rows)),
        },
        batch_size=len(rows),
    )
    # verl shifts by one: a place's log prob is that of the token after it.
    new = [torch.tensor([0.0, *[new for _, new, _ in tokens], 0.0], requires_grad=True) for _, _, tokens in rows]
    return data, new


def summed_loss(data, new, kind, ranks, mini, micro):
    """verl's own loss over ranks, mini batches and micro batches, added up as FSDP averages over ranks."""
    config = actor_config(kind)
    total = torch.zeros(())
    for rank, part in enumerate(tensordict_utils.chunk_tensordict(data, ranks)):
        options = {"mini_batch_size": mini // ranks, "epochs": 1, "seed": rank, "dataloader_kwargs": {"shuffle": True}}
        for mini_batch in tensordict_utils.make_iterator(part, **options):
            tokens = int(sum(row.sum() for row in torch.unbind(mini_batch["response_mask"])))
            tensordict_utils.assign_non_tensor(
                mini_batch,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=micro,
                dp_size=ranks,
                batch_num_tokens=tokens * ranks,
                global_batch_size=mini,
            )
            for micro_batch in prepare_micro_batches(mini_batch)[0]:
                log_probs = torch.nested.as_nested_tensor(
                    [new[row] for row in micro_batch["row"].tolist()], layout=torch.jagged
                )
                total = total + ppo_loss(config, {"log_probs": log_probs}, micro_batch)[0]
    return total / ranks


log_probs = st.floats(-3, -1 / 128, width=32)
token_rows = st.lists(st.tuples(log_probs, log_probs, st.sampled_from([0, 1])), min_size=1, max_size=4).map(
    lambda tokens: [*tokens[:-1], (*tokens[-1][:2], 1)]
)
loss_rows = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([-1.5, -0.25, 0.5, 2.0]), token_rows), min_size=8, max_size=8
)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(("ranks", "mini", "micro"), [(1, 8, 8), (1, 8, 1), (1, 2, 2), (2, 4, 1), (2, 8, 2), (4, 8, 1)])
@settings(max_examples=15, deadline=None)
@given(rows=loss_rows)
def test_the_loss_is_the_formulas_however_the_batch_is_split(kind, ranks, mini, micro, rows):
    keys = [RowKey(f"d{rollout}", 0, index) for index, (rollout, _, _) in enumerate(rows)]
    trained = torch.tensor([sum(token[2] for token in tokens) for _, _, tokens in rows])
    data, new = loss_inputs(rows, per_rollout_scale(keys, trained, [False] * len(rows)))
    loss = summed_loss(data, new, kind, ranks, mini, micro)
    assert float(loss) == pytest.approx(plain_loss(rows, kind, 0.1, 0.3, 3.0), rel=1e-4, abs=1e-6)

    _, whole = loss_inputs(rows, torch.ones(len(rows)))
    summed_loss(data, whole, kind, 1, 8, 8).backward()
    loss.backward()
    for ours, expected in zip(new, whole, strict=True):
        assert ours.grad is not None
        assert expected.grad is not None
        assert torch.allclose(ours.grad, expected.grad, atol=1e-7)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_rollout_weighs_the_same_however_many_rows_it_became(kind):
    tokens = [(-1.0, -1.1, 1), (-2.0, -1.9, 1), (-0.5, -0.7, 1), (-0.1, -0.1, 1)]
    other = (1, -1.0, [(-1.0, -1.2, 1)])
    one = [(0, 1.0, tokens), other]
    four = [*((0, 1.0, [token]) for token in tokens), other]
    losses = {}
    for rows in (one, four):
        keys = [RowKey(f"d{rollout}", 0, index) for index, (rollout, _, _) in enumerate(rows)]
        trained = torch.tensor([len(tokens) for _, _, tokens in rows])
        data, new = loss_inputs(rows, per_rollout_scale(keys, trained, [False] * len(rows)))
        losses[len(rows)] = float(summed_loss(data, new, kind, 1, len(rows), 1)) * len(rows)
    assert losses[2] == pytest.approx(losses[5], rel=1e-5)


@pytest.mark.parametrize("kind", LOSSES)
def test_importance_weights_of_the_sampler_are_applied(kind):
    mask, old, new = torch.ones(1, 2), torch.zeros(1, 2), torch.tensor([[-0.05, 0.02]])
    loss: Any = get_policy_loss_fn(kind)
    kwargs: dict[str, Any] = {"response_mask": mask, "config": actor_config(kind), "loss_agg_mode": "token-mean"}
    plain, _ = loss(old, new, torch.tensor([[1.0, 2.0]]), **kwargs)
    weighted, _ = loss(old, new, torch.tensor([[1.0, 2.0]]), rollout_is_weights=torch.full((1, 2), 0.5), **kwargs)
    assert float(weighted) == pytest.approx(float(plain) / 2)


# Between verl's trainer and its queue.


class Queue:
    """Rows and tags by key, as TransferQueue keeps them; enough of its interface to stand in for it."""

    def __init__(self):
        self.rows = {}

    def kv_batch_put(self, keys, partition_id, fields, tags=None):
        for index, key in enumerate(keys):
            row = self.rows.setdefault(key, {})
            row |= {name: fields[name][index] for name in fields.keys()}  # noqa: SIM118  a TensorDict iterates over rows
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=[{} for _ in keys], fields=[])

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.rows[key] for key in keys]
        names = [name for name in (select_fields or rows[0]) if name in rows[0]]
        return tensordict_utils.list_of_dict_to_tensordict([{name: row[name] for name in names} for row in rows])


class VerlsTrainer:
    """Where verl's own methods would be."""

    queue: Queue
    fails: bool

    def _compute_advantage(self, batch, metrics) -> Any:
        return "verl's own"

    def _update_actor(self, batch, metrics) -> Any:
        stored = self.queue.kv_batch_get(batch.keys, "train", ["advantages"])
        self.seen = [row.tolist() for row in torch.unbind(stored["advantages"])]
        if self.fails:
            raise RuntimeError("out of memory")
        return batch


class Trainer(PerRollout, VerlsTrainer):
    def __init__(self, queue, algorithm=(), loss="per_rollout_mean", fails=False):
        self.queue = queue
        self.fails = fails
        self.kl_ctrl_in_reward = SimpleNamespace(value=0.1, update=lambda **_: None)
        self.config = OmegaConf.create(
            {
                "algorithm": {
                    "adv_estimator": "grpo",
                    "gamma": 1.0,
                    "lam": 1.0,
                    "use_kl_in_reward": False,
                    "kl_penalty": "kl",
                    "enable_rollout_level_advantage": True,
                    "norm_adv_by_std_in_grpo": False,
                    **dict(algorithm),
                },
                "actor_rollout_ref": {"rollout": {"n": 2}, "actor": {"policy_loss": {"loss_mode": loss}}},
            }
        )


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(advantage, "tq", queue)
    monkeypatch.setattr(padding_utils, "tq", queue)
    return queue


def sent_to(queue, rollouts):
    """Put rows into the queue as the trainer does."""
    rows = rows_of(rollouts)
    fields = []
    for key, mask, reward in rows:
        scores = torch.zeros(len(mask))
        scores[-1] = reward
        fields.append(
            {
                "uid": key.uid,
                "prompts": torch.ones(2, dtype=torch.int64),
                "responses": torch.ones(len(mask), dtype=torch.int64),
                "response_mask": torch.tensor(mask),
                "rm_scores": scores,
                "old_log_probs": torch.full((len(mask),), -1.0),
                "ref_log_prob": torch.full((len(mask),), -1.5),
                "rollout_log_probs": torch.full((len(mask),), -1.0),
            }
        )
    keys, tags = [str(key) for key, _, _ in rows], [{} for _ in rows]
    queue.kv_batch_put(keys, "train", tensordict_utils.list_of_dict_to_tensordict(fields))
    return keys, tags


ROLLOUTS = [Rollout("d0", 0, ((1, 0, 1), (1,)), 1.0), Rollout("d0", 1, ((1, 1),), 0.0)]


def batch_in(queue, rollouts=ROLLOUTS):
    keys, tags = sent_to(queue, rollouts)
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags, fields=[])
    batch = padding_utils.upsample_batch_to_divisible_size(batch, 8, eos_token_id=0)
    for key in batch.keys[len(keys) :]:  # verl's later stages fill these in for padding too
        queue.rows[key] |= {"old_log_probs": torch.zeros(1), "ref_log_prob": torch.zeros(1)}
    batch.reorder(list(reversed(range(len(batch)))))
    return batch


def test_padding_takes_no_part_in_advantages_or_weights(queue):
    batch, trainer, metrics = batch_in(queue), Trainer(queue), {}
    trainer._compute_advantage(batch, metrics)
    found = {key: queue.rows[key]["advantages"].tolist() for key in batch.keys}
    assert found["d0_0_0"] == [0.5, 0.0, 0.5]
    assert found["d0_0_1"] == [0.5]
    assert found["d0_1_0"] == [-0.5, -0.5]
    assert [values for key, values in found.items() if key.startswith("pad")] == [[0.0]] * 5
    assert (metrics["training/rollouts"], metrics["training/rows"]) == (2.0, 3.0)


def test_advantages_are_scaled_for_the_update_alone(queue):
    batch, trainer = batch_in(queue), Trainer(queue)
    trainer._compute_advantage(batch, {})
    before = {key: queue.rows[key]["advantages"].tolist() for key in batch.keys}
    trainer._update_actor(batch, {})
    seen = dict(zip(batch.keys, trainer.seen, strict=True))
    assert seen["d0_0_0"] == pytest.approx([0.5 / (3 * 3), 0.0, 0.5 / (3 * 3)])
    assert seen["d0_0_1"] == pytest.approx([0.5 / (3 * 3)])
    assert seen["d0_1_0"] == pytest.approx([-0.5 / (2 * 3)] * 2)
    assert {key: queue.rows[key]["advantages"].tolist() for key in batch.keys} == before


def test_advantages_are_restored_when_the_update_fails(queue):
    batch, trainer = batch_in(queue), Trainer(queue, fails=True)
    trainer._compute_advantage(batch, {})
    before = {key: queue.rows[key]["advantages"].tolist() for key in batch.keys}
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer._update_actor(batch, {})
    assert {key: queue.rows[key]["advantages"].tolist() for key in batch.keys} == before


def test_other_losses_get_advantages_as_they_are(queue):
    batch, trainer = batch_in(queue), Trainer(queue, loss="vanilla")
    trainer._compute_advantage(batch, {})
    trainer._update_actor(batch, {})
    assert trainer.seen == [queue.rows[key]["advantages"].tolist() for key in batch.keys]


def test_a_penalty_on_the_reward_is_the_rollouts_over_all_its_tokens(queue):
    batch, metrics = batch_in(queue), {}
    Trainer(queue, {"use_kl_in_reward": True})._compute_advantage(batch, metrics)
    penalty = 0.1 * 0.5  # of each trained token
    rewards = [1.0 - 3 * penalty, 0.0 - 2 * penalty]
    assert queue.rows["d0_0_1"]["advantages"].tolist() == pytest.approx([rewards[0] - sum(rewards) / 2])
    assert queue.rows["d0_0_0"]["token_level_rewards"].tolist() == pytest.approx([-penalty, 0.0, 1.0 - penalty])
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.5)


def test_rejected_tokens_are_left_out_of_the_rollout(queue):
    batch = batch_in(queue)
    queue.rows["d0_0_0"]["old_log_probs"] = torch.tensor([-1.0, -1.0, -9.0])
    correction = {"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0, "rollout_is": "token"}
    Trainer(queue, {"rollout_correction": correction})._compute_advantage(batch, {})
    assert queue.rows["d0_0_0"]["response_mask"].tolist() == [1, 0, 0]
    assert queue.rows["d0_0_0"]["advantages"].tolist() == [0.5, 0.0, 0.0]
    assert queue.rows["d0_1_0"]["rollout_is_weights"].tolist() == pytest.approx([1.0, 1.0])


def test_verls_own_advantage_is_one_setting_away(queue):
    trainer = Trainer(queue, {"enable_rollout_level_advantage": False})
    assert trainer._compute_advantage(KVBatchMeta(), {}) == "verl's own"
