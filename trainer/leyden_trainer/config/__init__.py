"""The trainer's configuration: Leyden's settings over verl's, composed by Hydra.

Composing imports neither verl nor torch, so that the platform can still be chosen by what is configured.
"""

import difflib
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from leyden_trainer.settings import SettingsInvalid

_HERE = Path(__file__).parent
_NAME = "leyden_trainer"
_UNKNOWN = re.compile(r"Could not override '([^']+)'")


def load(overrides: Sequence[str] = (), file: Path | None = None) -> DictConfig:
    """Compose Leyden's defaults, or a file that builds on them (`defaults: [leyden_trainer, _self_]`), and overrides.

    Raises:
        SettingsInvalid: the file can't be read, or an override names no setting; verl is not installed.
    """
    found = find_spec("verl")
    if found is None or not found.submodule_search_locations:
        raise SettingsInvalid(["verl is not installed: pip install 'leyden[trainer]'"])
    if file is not None and not file.is_file():
        raise SettingsInvalid([f"configuration file {file} does not exist"])
    verl = Path(found.submodule_search_locations[0]) / "trainer" / "config"
    folder, name = (_HERE, _NAME) if file is None else (file.resolve().parent, file.stem)
    search = f"hydra.searchpath=['file://{_HERE}','file://{verl}']"

    def composed(overrides: Sequence[str]) -> DictConfig:
        with initialize_config_dir(str(folder), version_base=None):
            return compose(name, overrides=[search, *overrides])

    try:
        return composed(overrides)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        unknown = _UNKNOWN.match(str(error))
        problem = _not_a_setting(unknown[1], composed(())) if unknown else _reason(error)
        raise SettingsInvalid([problem]) from error


def _not_a_setting(name: str, config: Any) -> str:
    """That `name` is none, and which of `config` may have been meant."""
    where = name.split(".")
    for depth, part in enumerate(where):
        above = ".".join(where[:depth])
        if not isinstance(config, DictConfig):
            return f"{name} is not a setting: {above} holds a value, no settings"
        if part not in config:
            close = difflib.get_close_matches(part, [str(key) for key in config], n=1)
            return f"{name} is not a setting" + (
                f"; did you mean {f'{above}.{close[0]}'.lstrip('.')}?" if close else ""
            )
        config = config._get_node(part)
    return f"{name} is not a setting"


def _reason(error: BaseException) -> str:
    """What Hydra says, with the cause that it keeps to itself, on one line."""
    said = [str(error), *([str(error.__cause__)] if error.__cause__ else [])]
    return ": ".join(" ".join(each.split()) for each in said)
