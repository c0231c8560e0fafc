"""`leyden gateway`, `leyden controller`, `leyden train`: the services, each in this process's place.

They are other packages, which this one does not import: it starts their modules.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import typer

from leyden import deployment
from leyden.cli.console import DataDir, err, out

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

_OWN_HELP = f"""--data-dir FOLDER, or LEYDEN_DATA_DIR (default: {deployment.DEFAULT_FOLDER})
    Folder of a deployment of `leyden up`, whose Redis, gateway and key are used unless the environment names others.
    Every other option goes on to this command:
"""


def gateway(context: typer.Context, data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Run a gateway replica. Further options are the gateway's own: `leyden gateway --help`."""
    _become("leyden_gateway", context.args, data_dir)


def controller(context: typer.Context, data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Run a controller. Further options are the controller's own: `leyden controller --help`."""
    _become("leyden_controller", context.args, data_dir)


def train(context: typer.Context, data_dir: DataDir = deployment.DEFAULT_FOLDER) -> None:
    """Train on what the log says. Further arguments are the trainer's own: `leyden train --help`."""
    if importlib.util.find_spec("verl") is None:
        err.print("[bold red]error:[/] the trainer needs verl: pip install 'leyden\\[trainer]'", highlight=False)
        raise typer.Exit(1)
    _become("leyden_trainer", context.args, data_dir)


def _become(module: str, arguments: list[str], data_dir: Path) -> None:
    """Replace this process by `python -m MODULE`, told of the folder's deployment unless the environment says more."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        out.print(_OWN_HELP, highlight=False, markup=False)
    known = deployment.load(data_dir)
    environment = dict(os.environ)
    if known is not None:
        environment.setdefault("LEYDEN_REDIS_URL", known.redis_url)
        environment.setdefault("LEYDEN_GATEWAY_URL", known.gateway_url)
        if not environment.get("AGL_KEY"):
            environment.setdefault("LEYDEN_KEY", known.key)
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)
