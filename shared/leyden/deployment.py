"""What `leyden up` tells the other commands: where its Redis and gateway are, and the key.

The file lies in the data folder, readable by its owner only, and outlives a restart, so that agents' tokens do too.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

DEFAULT_FOLDER = Path(".leyden")
_FILE = "leyden.json"


class DeploymentUnknown(RuntimeError):
    """Nothing says where the deployment is; the message says how to."""


class Deployment(BaseModel):
    """A deployment on this machine."""

    model_config = ConfigDict(extra="forbid")

    redis_url: str
    gateway_url: str
    key: str

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{_FILE}.tmp"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(self.model_dump_json(indent=2) + "\n")
        draft.replace(folder / _FILE)


def load(folder: Path) -> Deployment | None:
    """The deployment that was last brought up over a folder, if any.

    Raises:
        DeploymentUnknown: the file is damaged.
    """
    file = folder / _FILE
    try:
        return Deployment.model_validate_json(file.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise DeploymentUnknown(f"{file} is damaged; delete it and run `leyden up` again: {error}") from error


def redis_url(folder: Path) -> str:
    """`LEYDEN_REDIS_URL`, else what `leyden up` has started over this folder.

    Raises:
        DeploymentUnknown: neither is there.
    """
    given = os.environ.get("LEYDEN_REDIS_URL")
    if given:
        return given
    found = load(folder)
    if found is None:
        raise DeploymentUnknown(
            f"no log is known in {folder}: run `leyden up`, name its folder with --data-dir, or set LEYDEN_REDIS_URL"
        )
    return found.redis_url


def key(folder: Path) -> str:
    """`LEYDEN_KEY` or `AGL_KEY`, else the key that this folder's deployment has, else a new random one."""
    given = os.environ.get("LEYDEN_KEY") or os.environ.get("AGL_KEY")
    if given:
        return given
    found = load(folder)
    return found.key if found else secrets.token_urlsafe(32)
