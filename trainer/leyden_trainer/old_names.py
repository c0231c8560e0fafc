"""`agentlightning:`, the old name of the `leyden:` section, with the settings that it had.

Invariants:
- null and an empty mapping mean that a setting was not given;
- a setting given under both names must be given the same value.
"""

from collections.abc import Mapping
from typing import Any

import structlog

_log = structlog.get_logger()

_UNUSED = ("agl_base_url", "agl_key")
_KNOWN = frozenset(
    {
        *_UNUSED,
        "hooks",
        "rollout_timeout_seconds",
        "local.agent_class",
        "local.env_map",
        "k8s.job_template_path",
        "reward_fillna_value",
        "max_ppo_update_times",
        "trace_aggregator.level",
        "trace_aggregator.trajectory_max_prompt_length",
        "trace_aggregator.trajectory_max_response_length",
        "trace_aggregator.trajectory_max_total_length",
        "async_rollout.enabled",
        "async_rollout.async_train_batch_size",
    }
)
_SECTIONS = frozenset(name.split(".")[0] for name in _KNOWN if "." in name)


class OldNamesInvalid(ValueError):
    """`agentlightning:` has an unknown setting, or contradicts `leyden:`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def with_old_names(
    given: Mapping[str, Any], old: Mapping[str, Any] | None, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Put what `agentlightning:` sets into what `leyden:` sets; neither is changed.

    Raises:
        OldNamesInvalid: names every unknown and every contradicting setting.
    """
    merged = {name: dict(value) if isinstance(value, Mapping) else value for name, value in given.items()}
    problems: list[str] = []
    for name, value in _given(old or {}).items():
        if name not in _KNOWN:
            problems.append(f"agentlightning.{name} is not a setting")
        elif name in _UNUSED:
            _log.warning("setting is not needed: the trainer reads the log itself", setting=f"agentlightning.{name}")
        elif not _put(merged, name.split("."), value, _at(defaults, name)):
            problems.append(f"agentlightning.{name} is {value!r}, but leyden.{name} is {_at(given, name)!r}")
    if problems:
        raise OldNamesInvalid(problems)
    return merged


def _given(old: Mapping[str, Any]) -> dict[str, Any]:
    """What was set, by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in old.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flat[str(name)] = value
    return {name: value for name, value in flat.items() if value is not None and value != {}}


def _put(merged: dict[str, Any], path: list[str], value: Any, default: Any) -> bool:
    """Set a value; False if another one than the default stands there already."""
    section = merged
    for part in path[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    standing = section.get(path[-1])
    if standing not in (None, default, value):
        return False
    section[path[-1]] = value
    return True


def _at(section: Mapping[str, Any], name: str) -> Any:
    found: Any = section
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
