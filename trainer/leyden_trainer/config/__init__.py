"""The trainer's configuration: Leyden's settings over verl's, composed by Hydra.

Composing imports neither verl nor torch, so that the platform can still be chosen by what is configured.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from leyden_trainer.settings import SettingsInvalid

_HERE = Path(__file__).parent
_NAME = "leyden_trainer"


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
    try:
        with initialize_config_dir(str(folder), version_base=None):
            return compose(name, overrides=[search, *overrides])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise SettingsInvalid([_reason(error)]) from error


def _reason(error: BaseException) -> str:
    """What Hydra says, with the cause that it keeps to itself, on one line."""
    said = [str(error), *([str(error.__cause__)] if error.__cause__ else [])]
    return ": ".join(" ".join(each.split()) for each in said)
