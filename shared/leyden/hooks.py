"""Code of the user's own that runs around rollouts, in the trainer: one subclass of `RolloutHooks` in one file.

Written for Agent Lightning v1.0's hooks, whose files work unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from leyden import schemas
from leyden.schemas import Event, NewRollout, Rollout


class TraceWriter(Protocol):
    """Appends events to a rollout on behalf of a hook."""

    def add_event(self, rollout_id: str, attempt_id: str, event_type: str, data: dict[str, Any]) -> Any:
        """Append one event; a hook that runs again after a crash does not append it twice."""
        ...


class RolloutHooks:
    """Override what you need; every method may block, none may assume that it runs in the agent's process."""

    def on_startup(self, store: Any | None = None) -> None:
        """Run once before the first rollout is enqueued."""

    def on_enqueue(self, request: NewRollout) -> NewRollout:
        """Change a rollout before it is created. Must be deterministic: it is asked again after a restart."""
        return request

    def on_succeeded(self, rollout: Rollout, events: dict[str, list[Event]], store: TraceWriter) -> None:
        """Run after a rollout succeeded, with its events by attempt, before it is turned into samples."""

    def on_failed(self, rollout: Rollout, store: TraceWriter) -> None:
        """Run after a rollout failed."""


class HooksInvalid(ValueError):
    """The hooks file does not define exactly one subclass of `RolloutHooks`."""


_OLD_MODULES: dict[str, dict[str, Any]] = {
    "agentlightning": {},
    "agentlightning.hooks": {"RolloutHooks": RolloutHooks, "TraceWriter": TraceWriter},
    "agentlightning.schemas": {
        "Event": schemas.Event,
        "Model": schemas.Model,
        "Rollout": schemas.Rollout,
        "RolloutConfig": schemas.RolloutConfig,
        "RolloutCreate": schemas.NewRollout,
        "RolloutK8sConfig": schemas.K8sConfig,
        "RolloutLocalConfig": schemas.LocalConfig,
        "RolloutMetadata": schemas.RolloutMetadata,
        "RolloutState": schemas.State,
    },
}
"""What a hooks file written for Agent Lightning imports, where that is not installed."""


def load_hooks(path: str | Path) -> RolloutHooks:
    """Create the one `RolloutHooks` subclass that a Python file defines.

    Raises:
        HooksInvalid: there is no such file, or it defines none or several.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location("leyden_user_hooks", file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise HooksInvalid(f"hooks file {file} does not exist or is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Data classes and pickles of the file look their module up.
    sys.modules[spec.name] = module
    _stand_in_for_agent_lightning()
    spec.loader.exec_module(module)
    bases: tuple[type[RolloutHooks], ...] = (RolloutHooks, sys.modules["agentlightning.hooks"].RolloutHooks)
    found: list[Any] = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, bases) and member not in bases and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(sorted(member.__name__ for member in found)) or "none"
        raise HooksInvalid(f"hooks file {file} must define exactly one subclass of RolloutHooks, found: {names}")
    return found[0]()


def _stand_in_for_agent_lightning() -> None:
    if "agentlightning.hooks" in sys.modules:
        return
    if importlib.util.find_spec("agentlightning") is not None:
        importlib.import_module("agentlightning.hooks")
        return
    for name, members in _OLD_MODULES.items():
        module = ModuleType(name, __doc__)
        module.__path__ = []
        vars(module).update(members)
        sys.modules[name] = module
