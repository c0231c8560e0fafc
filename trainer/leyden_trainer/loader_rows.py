"""What verl's data loader iterates over: the places of rows, since nothing in verl has to understand a row."""

from typing import Any

from torch.utils.data import Dataset


class RowPlaces(Dataset):
    """A map-style dataset of `data_files` rows, as verl constructs its datasets.

    verl counts prompts by `raw_prompt`, so there is one; what is asked is the agent's to decide.
    """

    def __init__(self, data_files: int, max_samples: int = -1, **of_verl: Any) -> None:
        self._length = data_files if max_samples < 0 else min(data_files, max_samples)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": "", "index": index}
