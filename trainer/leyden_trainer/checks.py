"""What verl's part of a configuration must say so that the trainer's promises hold, checked before anything starts.

Imports neither verl nor torch.
"""

import hashlib
from pathlib import Path
from typing import Any

import orjson
from omegaconf import DictConfig, ListConfig, OmegaConf

from leyden_trainer import batch_sizes
from leyden_trainer.settings import LeydenSettings, SettingsInvalid

PER_ROLLOUT_LOSSES = ("per_rollout_mean", "cispo_per_rollout_mean")
LOSS_MODULE = "leyden_trainer.loss"

_MODES = ("sync",)
"""verl's trainer modes that are supported so far."""
_UNFED_ESTIMATORS = {
    "remax": "it needs a greedy rollout of each prompt",
    "gdpo": "it needs a reward for each of its components",
}
"""Estimators for which verl's v1 trainer does not provide what they compute from."""

_TOKENIZER_FILES = ("tokenizer*", "*.tiktoken", "tekken.json", "vocab.*", "spiece.model", "sentencepiece*.model")
"""One of these is in every folder that a tokenizer can be loaded from."""

_SECTIONS_OF_A_BRANCH = ("algorithm", "data", "critic", "reward", "distillation", "actor_rollout_ref")
_NOT_OF_A_BRANCH = frozenset(
    {
        "redis_url",
        "run",
        "branch",
        "lease_seconds",
        "extra_readers",
        "engines",
        "log_timeout_seconds",
        "progress_timeout_seconds",
        "drain_timeout_seconds",
        "hold_timeout_seconds",
    }
)
"""Leyden's settings that say where and how patiently a run is trained, not what is trained."""


def check(config: DictConfig, settings: LeydenSettings) -> None:
    """Refuse what would break a promise.

    Raises:
        SettingsInvalid: names every such setting, with its value and what to set instead.
    """
    problems = [
        *_restarts(config),
        *_updates(config),
        *_rollouts(config, settings),
        *batch_sizes.problems(config),
        *_model(config),
    ]
    if problems:
        raise SettingsInvalid(problems)


def config_digest(config: DictConfig, settings: LeydenSettings) -> str:
    """Digest of all that decides what is trained and how; another one begins another branch."""
    sections = {name: _plain(config, name) for name in _SECTIONS_OF_A_BRANCH}
    template = settings.k8s.job_template_path
    decisive = {
        "verl": sections,
        "leyden": settings.model_dump(mode="json", exclude=set(_NOT_OF_A_BRANCH)),
        "job_template": None if template is None else Path(template).read_text(),
    }
    return hashlib.sha256(orjson.dumps(decisive, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _restarts(config: DictConfig) -> list[str]:
    problems = []
    save_freq = _at(config, "trainer.save_freq")
    if not isinstance(save_freq, int) or save_freq <= 0:
        problems.append(
            f"trainer.save_freq is {save_freq}: without checkpoints nothing consumed could ever be acknowledged; "
            "set how many steps to train between checkpoints"
        )
    if _at(config, "actor_rollout_ref.actor.checkpoint.async_save"):
        problems.append(
            "actor_rollout_ref.actor.checkpoint.async_save is true: a checkpoint must be on disk when its rollouts are "
            "acknowledged; set it to false"
        )
    if not _at(config, "trainer.use_v1"):
        problems.append("trainer.use_v1 is false: only verl's v1 trainers are supported; set it to true")
    if (mode := _at(config, "trainer.v1.trainer_mode")) not in _MODES:
        problems.append(f"trainer.v1.trainer_mode is {mode!r}; supported so far: {', '.join(_MODES)}")
    return problems


def _updates(config: DictConfig) -> list[str]:
    problems = []
    if _at(config, "algorithm.use_pf_ppo"):
        problems.append("algorithm.use_pf_ppo is true: it resamples rows behind the batch on record; set it to false")
    estimator = str(_at(config, "algorithm.adv_estimator"))
    if reason := _UNFED_ESTIMATORS.get(estimator):
        problems.append(f"algorithm.adv_estimator is {estimator!r}: verl's v1 trainer can't use it, since {reason}")
    loss, libraries = _at(config, "actor_rollout_ref.actor.policy_loss.loss_mode"), _external_libs(config)
    if loss in PER_ROLLOUT_LOSSES and LOSS_MODULE not in libraries:
        problems.append(
            f"actor_rollout_ref.actor.policy_loss.loss_mode is {loss!r}, which workers know only if "
            f"actor_rollout_ref.model.external_lib loads {LOSS_MODULE}; it is {libraries}"
        )
    temperature = _at(config, "actor_rollout_ref.rollout.temperature")
    if not isinstance(temperature, int | float) or temperature <= 0:
        problems.append(f"actor_rollout_ref.rollout.temperature is {temperature!r}: training needs one above 0")
    return problems


def _rollouts(config: DictConfig, settings: LeydenSettings) -> list[str]:
    problems = [
        f"{name} is true: the trainer's own sampler takes what was decided and refills nothing; set it to false"
        for name in ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")
        if _at(config, name)
    ]
    train_batch_size, asked = _at(config, "data.train_batch_size"), settings.async_rollout.async_train_batch_size
    if settings.async_rollout.enabled and (asked is None or asked <= train_batch_size):
        problems.append(
            f"leyden.async_rollout.async_train_batch_size is {asked}: with async_rollout enabled it must be more than "
            f"data.train_batch_size, {train_batch_size}"
        )
    replay = _at(config, "actor_rollout_ref.actor.megatron.router_replay.mode")
    if replay == "R3" and not settings.return_routed_experts:
        problems.append("router_replay.mode is R3: it needs leyden.return_routed_experts")
    return problems


def _model(config: DictConfig) -> list[str]:
    name = "actor_rollout_ref.model.path"
    path = _at(config, name)
    if not path:
        return [f"{name} is {path!r}: it names the model to train, a folder or a hub's name for it"]
    if "://" in str(path):
        return []
    folder = Path(str(path)).expanduser()
    if folder.is_dir():
        return _folder_of_a_model(config, name, folder)
    if folder.exists():
        return [f"{name} is {path!r}: that is a file; it must be a model's folder or a hub's name for one"]
    # A hub's name for a model has one slash at most, and begins with neither of these.
    if str(path).startswith(("/", ".", "~")) or str(path).count("/") > 1:
        return [f"{name} is {path!r}: there is no such folder"]
    return []


def _folder_of_a_model(config: DictConfig, name: str, folder: Path) -> list[str]:
    """What verl would miss in a folder; it may be told to look for either elsewhere."""
    missing = []
    if not _at(config, "actor_rollout_ref.model.hf_config_path") and not (folder / "config.json").is_file():
        missing.append("config.json")
    if not _at(config, "actor_rollout_ref.model.tokenizer_path") and not any(
        next(folder.glob(pattern), None) for pattern in _TOKENIZER_FILES
    ):
        missing.append("tokenizer files")
    return [f"{name} is {str(folder)!r}: the folder has no {' and no '.join(missing)}"] if missing else []


def _external_libs(config: DictConfig) -> list[str]:
    libraries: Any = _at(config, "actor_rollout_ref.model.external_lib")
    return list(libraries) if isinstance(libraries, list | ListConfig) else [libraries]


def _at(config: DictConfig, name: str) -> Any:
    return OmegaConf.select(config, name)


def _plain(config: DictConfig, name: str) -> Any:
    section = _at(config, name)
    return OmegaConf.to_container(section, resolve=True) if isinstance(section, DictConfig) else section
