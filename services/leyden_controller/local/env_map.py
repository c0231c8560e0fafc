"""The environment variables that a rollout's `env_map` asks for.

A value is `input` (the whole input), a path into it (`input.a.b.0`: keys of objects, indexes of lists), or else a
literal. What a path names is passed as it is if it is a string, anything else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from leyden_controller.runner import StartRefused


def variables_of(env_map: Mapping[str, str], rollout_input: Any) -> dict[str, str]:
    """What each variable of `env_map` is for this input.

    Raises:
        StartRefused: a path is not in the input, or a name or value can't stand in an environment.
    """
    return {name: _checked(name, _value_of(name, source, rollout_input)) for name, source in env_map.items()}


def _value_of(name: str, source: str, rollout_input: Any) -> str:
    head, *path = source.split(".")
    if head != "input":
        return source
    value = rollout_input
    for depth, part in enumerate(path, 1):
        try:
            value = _step(value, part)
        except LookupError:
            found = ".".join([head, *path[:depth]])
            raise StartRefused(f"env_map.{name}: the input has no {source!r} ({found!r} is missing)") from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value[part]
    if isinstance(value, list) and part.isascii() and part.isdigit():
        return value[int(part)]
    raise LookupError(part)


def _checked(name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise StartRefused(f"env_map: {name!r} can't be the name of an environment variable")
    if "\0" in value:
        raise StartRefused(f"env_map.{name}: the value contains a NUL character, which no environment can hold")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StartRefused(f"env_map.{name}: the value contains half a surrogate pair, which is no text") from None
    return value
