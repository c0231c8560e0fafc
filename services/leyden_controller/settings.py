"""The controller's settings: `LEYDEN_NAME` in the environment for each field NAME here, or a flag of `python -m
leyden_controller`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from leyden.schemas import Name

Seconds = Annotated[float, Field(gt=0)]


class ControllerSettings(BaseSettings):
    """Everything that can be set about a controller process."""

    model_config = SettingsConfigDict(
        env_prefix="LEYDEN_",
        populate_by_name=True,
        extra="ignore",
        cli_prog_name="python -m leyden_controller",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        use_attribute_docstrings=True,
    )

    redis_url: str = "redis://127.0.0.1:6379/0"
    gateway_url: str = Field(default="http://127.0.0.1:8080", pattern=r"^https?://\S+$")
    """The gateway, as agents reach it."""
    key: SecretStr = Field(default=SecretStr(""), validation_alias=AliasChoices("LEYDEN_KEY", "AGL_KEY", "key"))
    """The admin key, from which agents' tokens are made; empty if the gateway's is."""
    runs: Annotated[list[Name], NoDecode] = []
    """Runs to serve, separated by commas; all if none is named."""
    slots: int = Field(default=16, ge=1)
    """How many agents may run at once."""
    lease_seconds: Seconds = 15
    """After how long without a sign of life a controller's rollouts are given to another."""
    shutdown_grace_seconds: float = Field(default=15, ge=0)
    """How long agents may run on after SIGTERM, before their rollouts are handed back."""
    redis_deadline_seconds: Seconds = 600
    """How long the controller waits for a Redis that is away, before it gives up and exits."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where `/metrics` is served for Prometheus, if anywhere."""
    metrics_host: str = "127.0.0.1"
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")

    @field_validator("runs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return [name.strip() for name in value.split(",") if name.strip()]
