"""All rows of a rollout as one sequence, and values on it given back to the rows.

Invariants:
- a sequence holds its rows' tokens in order of row, each up to its last trained token, with one masked place between
  rows, so that an estimator that looks at turns sees a turn end there;
- what is gathered and scattered back is unchanged; all other places of the rows are 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from leyden_trainer.ids import RowKey

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class RolloutSequences:
    """Where each place of the rollouts' sequences lies in the rows.

    `place`: int64 (rollouts, longest sequence), an index into the flattened (rows, response length), or -1 for padding.
    `first_row`: int64 (rollouts,), one row of each. `of_row`: int64 (rows,), the rollout of each row.
    """

    place: torch.Tensor
    first_row: torch.Tensor
    of_row: torch.Tensor

    @classmethod
    def of(cls, keys: Sequence[RowKey], response_mask: torch.Tensor) -> "RolloutSequences":
        """Lay out rows with these keys; `response_mask`: (rows, response length), 1 where trained."""
        rows: dict[tuple[str, int], list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key.rollout, []).append(row)
        width = response_mask.shape[1]
        columns = torch.arange(1, width + 1, device=response_mask.device)
        ends = (response_mask.bool() * columns).amax(dim=1).tolist()
        gap = torch.tensor([_NOWHERE], device=response_mask.device)
        sequences, of_row = [], torch.empty(len(keys), dtype=torch.int64, device=response_mask.device)
        for rollout, members in enumerate(rows.values()):
            members.sort(key=lambda row: keys[row].row)
            of_row[members] = rollout
            parts = []
            for row in members:
                parts += [gap, torch.arange(row * width, row * width + ends[row], device=response_mask.device)]
            sequence = torch.cat(parts[1:])
            sequences.append(sequence if len(sequence) else gap)
        place = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=_NOWHERE)
        first_row = torch.tensor([members[0] for members in rows.values()], device=response_mask.device)
        return cls(place, first_row, of_row)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """(rows, response length) → (rollouts, longest sequence), 0 where no token lies."""
        found = values.flatten()[self.place.clamp(min=0)]
        return torch.where(self.place == _NOWHERE, torch.zeros_like(found), found)

    def scatter(self, values: torch.Tensor, rows_like: torch.Tensor) -> torch.Tensor:
        """(rollouts, longest sequence) → the shape of `rows_like`, 0 where a row has no place in its sequence."""
        flat = torch.zeros(rows_like.numel(), dtype=values.dtype, device=values.device)
        there = self.place != _NOWHERE
        flat[self.place[there]] = values[there]
        return flat.view(rows_like.shape)

    def last_trained(self, mask: torch.Tensor) -> torch.Tensor:
        """int64 (rollouts,): the last place with mask 1, or 0 without any; `mask` as gathered."""
        return (mask.bool() * torch.arange(mask.shape[1], device=mask.device)).amax(dim=1)
