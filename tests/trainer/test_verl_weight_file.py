"""Weights in a model's directory, as servers find them."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from leyden_trainer.engines.weight_file import WEIGHTS, WeightFileEngine

pytestmark = pytest.mark.verl


async def test_weights_replace_those_of_the_model_and_its_shards(tmp_path: Path):
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", f"{WEIGHTS}.index.json"):
        (tmp_path / name).write_text("old")
    (tmp_path / "config.json").write_text("{}")
    engine = WeightFileEngine(bucket_size=1, is_master=True, directory=str(tmp_path))

    for step in (1, 2):
        said = await engine.send_weights([("a", torch.full((2, 2), float(step)))], global_steps=step)

    assert sorted(os.listdir(tmp_path)) == ["config.json", WEIGHTS]
    assert load_file(tmp_path / WEIGHTS)["a"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt", "version": "2"}
    assert said["weights/tensors"] == 1


async def test_tied_and_strided_weights_are_written(tmp_path: Path):
    tied = torch.arange(6.0).reshape(2, 3)
    engine = WeightFileEngine(bucket_size=1, is_master=True, directory=str(tmp_path))

    await engine.send_weights([("embed", tied), ("head", tied), ("turned", tied.T)])

    written = load_file(tmp_path / WEIGHTS)
    assert written["embed"].equal(written["head"])
    assert written["turned"].tolist() == tied.T.tolist()


async def test_every_rank_drains_the_weights_and_only_the_first_writes(tmp_path: Path):
    drained = []

    def weights():
        for name in ("a", "b"):
            drained.append(name)
            yield name, torch.zeros(1)

    said = await WeightFileEngine(bucket_size=1, is_master=False, directory=str(tmp_path)).send_weights(weights())

    assert drained == ["a", "b"]
    assert said == {}
    assert os.listdir(tmp_path) == []
