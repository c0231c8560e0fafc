"""What pydantic found wrong with a service's settings, said so that a person at a terminal can mend it."""

from __future__ import annotations

from pydantic import BaseModel, SecretStr, ValidationError


def wrong_settings(model: type[BaseModel], error: ValidationError) -> list[str]:
    """A line for each wrong setting: its variable, its value unless that is a secret, and what it must be."""
    lines = []
    for each in error.errors(include_url=False, include_context=False):
        field = str(each["loc"][0]) if each["loc"] else ""
        known = model.model_fields.get(field)
        secret = known is None or known.annotation is SecretStr or "url" in field
        value = "" if secret or each["type"] == "missing" else f" is {each['input']!r}"
        what = each["msg"].removeprefix("Value error, ")
        lines.append(f"{f'LEYDEN_{field.upper()}{value}: ' if field else ''}{what}")
    return lines
