"""Rows as verl's TransferQueue holds them.

Invariants:
- a row's key is `{uid}_{repeat}_{row}`; its fields are those of verl's agent loops, its tags those its trainers read;
- a row's reward stands on its last token, which is a sampled one.
"""

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from leyden_trainer.ids import RowKey, steps_of
from leyden_trainer.samples import Row

_MESSAGES_A_CALL = 2
"""verl counts turns in messages: what was asked and what was answered."""


def put_rows(
    uid: str,
    repeat: int,
    rows: Sequence[Row],
    *,
    reward: float,
    data_source: str,
    step: int,
    branches: Sequence[str],
    partition: str,
) -> dict[str, dict[str, Any]]:
    """Put one rollout's rows and return their tags by key, in row order.

    `step` is the one that asked for the rollout; `branches` are those whose weights may have sampled it.
    """
    keys = [str(RowKey(uid, repeat, row)) for row in range(len(rows))]
    tags, fields = [], []
    for row in rows:
        oldest, newest = steps_of((*row.versions, *row.later_versions), branches) or (step - 1, step - 1)
        output = AgentLoopOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.response_mask),
            response_logprobs=list(row.log_probs or [0.0] * len(row.response_ids)),
            routed_experts=row.routed_experts,
            reward_score=reward,
            num_turns=row.calls * _MESSAGES_A_CALL,
            metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": oldest, "max_global_steps": newest, "reward_extra_info": {}},
        )
        field = output.as_dict()
        ids = torch.cat([field["prompts"], field["responses"]])
        field |= {
            "uid": uid,
            "session_id": repeat,
            "data_source": data_source,
            "global_steps": step,
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": field["response_mask"],
            "multi_modal_inputs": {},
        }
        fields.append(field)
        tags.append(
            {
                "status": "success",
                "prompt_len": len(row.prompt_ids),
                "response_len": len(row.response_ids),
                "seq_len": len(ids),
                "global_steps": step,
                "min_global_steps": oldest,
                "max_global_steps": newest,
            }
        )
    tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=partition)
    return dict(zip(keys, tags, strict=True))
