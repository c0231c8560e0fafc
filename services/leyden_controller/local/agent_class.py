"""Runs one agent class, in the fresh process that the local runner started for it: `python -m … pkg.module:Class`.

The class is created without arguments and its `run()` called, and awaited if that gives something to await. The exit
code is 0 if it returned and 1, after a traceback, if it raised; the agent's own `sys.exit` is left as it is.
"""

from __future__ import annotations

import importlib
import sys


class AgentClassUnusable(ImportError):
    """The class can't be imported, or is none."""


def load(path: str) -> type:
    """The class at `pkg.module.Class` or `pkg.module:Class`.

    Raises:
        AgentClassUnusable: the path is malformed, names nothing, or names something else.
    """
    module_name, _, class_name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not class_name:
        raise AgentClassUnusable(f"agent_class {path!r} is neither pkg.module.Class nor pkg.module:Class")
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise AgentClassUnusable(f"agent_class {path!r} can't be imported: {error}") from error
    if not isinstance(loaded, type):
        raise AgentClassUnusable(f"agent_class {path!r} is a {type(loaded).__name__}, not a class")
    return loaded


def main() -> None:
    # So that the agent's own reading of its arguments finds none of ours.
    path, sys.argv = sys.argv[1], sys.argv[:1]
    outcome = load(path)().run()
    if hasattr(outcome, "__await__"):
        # Imported only when needed: it takes longer than the rest of this process's start.
        import asyncio

        async def finish() -> None:
            await outcome

        asyncio.run(finish())


if __name__ == "__main__":
    main()
