"""What verl must be told so that its trainer does what Leyden's settings say. Changes the configuration in place."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from leyden_trainer.engines.openai_servers import prepare_directory
from leyden_trainer.settings import EngineKind, LeydenSettings

ROLLOUT_NAME = "leyden_external"
"""verl's name for an inference engine that it does not run."""

WEIGHT_FILE_BACKEND = "leyden_weight_file"
_WEIGHT_FILE_MODULE = "leyden_trainer.engines.weight_file"


def served_model(config: DictConfig, settings: LeydenSettings) -> str:
    """The name under which servers know the model; verl's own replicas serve its path."""
    return settings.engines.model or str(config.actor_rollout_ref.model.path)


def fit_verl(config: DictConfig, settings: LeydenSettings, train_rows: int, val_rows: int) -> None:
    """Have verl load `train_rows` and `val_rows` rows, compute no rewards, and sample where the settings say."""
    values: dict[str, Any] = {
        "data.train_files": train_rows,
        "data.val_files": val_rows,
        "data.custom_cls.path": "pkg://leyden_trainer.loader_rows",
        "data.custom_cls.name": "RowPlaces",
        "data.dataloader_num_workers": 0,
        "reward.num_workers": 0,
    }
    if settings.engines.kind is EngineKind.EXTERNAL:
        directory = Path(str(settings.engines.weights_dir)).absolute()
        prepare_directory(directory, Path(str(config.actor_rollout_ref.model.path)))
        values |= {
            "actor_rollout_ref.rollout.name": ROLLOUT_NAME,
            "actor_rollout_ref.rollout.nnodes": max(1, config.actor_rollout_ref.rollout.nnodes),
            "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
            "actor_rollout_ref.rollout.checkpoint_engine.backend": WEIGHT_FILE_BACKEND,
            "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": _WEIGHT_FILE_MODULE,
            "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs": {
                WEIGHT_FILE_BACKEND: {"directory": str(directory)}
            },
        }
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key, value, force_add=True)
