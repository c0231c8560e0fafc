"""The gateway's settings: `LEYDEN_NAME` in the environment for each field NAME here, and a flag of `python -m
leyden_gateway` for those that are set by hand."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from leyden.log.memory import ROLLOUTS_MEMORY_SHARE
from leyden.log.runs import RunSettings

Seconds = Annotated[float, Field(gt=0)]

WELL_KNOWN_KEYS = frozenset(
    {"admin", "agl", "agl-key", "changeme", "change-me", "default", "demo", "dummy", "example", "key", "leyden"}
    | {"password", "secret", "sk-1234", "test", "token", "your-key", "your-api-key", "123456"}
)
"""Keys that stand in examples everywhere, so that anyone tries them first."""


class UnsafeSettings(ValueError):
    """The settings would let strangers in; the message says what to change."""


class GatewaySettings(BaseSettings):
    """Everything that can be set about a gateway process."""

    model_config = SettingsConfigDict(
        env_prefix="LEYDEN_", populate_by_name=True, extra="ignore", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8080, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    workers: int = Field(default=1, ge=1)
    """How many processes share the port."""
    key: SecretStr = Field(default=SecretStr(""), validation_alias=AliasChoices("LEYDEN_KEY", "AGL_KEY"))
    """The admin key; empty switches auth off."""
    insecure: bool = False
    """Start although the key is empty or well known and the address can be reached from elsewhere."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """The Redis or Valkey that holds the log."""

    model: str | None = None
    """Model name of run `default`; None forwards the only registered model's, or the agent's own."""
    train_temperature: float = Field(default=1.0, ge=0)
    """The temperature of the calls of run `default`'s training rollouts."""
    val_temperature: float = Field(default=0.7, ge=0)
    """The temperature of the calls of run `default`'s validation rollouts."""
    include_log_probs: bool = True
    """Whether log probs are recorded for run `default`'s training rollouts."""
    return_routed_experts: bool = False
    """Whether routed experts are recorded for run `default`'s training rollouts."""
    when_paused: Literal["refuse", "hold"] = "refuse"
    """What run `default` does with calls while it is paused: refuse them (429), or let them wait."""
    hold_timeout_seconds: Seconds = 3600
    """How long a call of run `default` may wait while it is paused, before it is refused."""

    max_calls_per_attempt: int | None = Field(default=None, ge=1)
    """How many calls an attempt of run `default` may make; None sets no limit."""
    max_tokens_per_attempt: int | None = Field(default=None, ge=1)
    """How many tokens, prompts included, the calls of an attempt of run `default` may come to."""

    max_concurrent_calls: int = Field(default=10_000, ge=1)
    """How many calls a process takes on at once, held ones apart."""
    rollouts_memory_share: float = Field(default=ROLLOUTS_MEMORY_SHARE, gt=0, le=1)
    """The part of Redis's `maxmemory` above which new rollouts are refused."""
    max_body_bytes: int = Field(default=64 << 20, gt=0)
    """A request that is larger is refused."""
    max_answer_bytes: int = Field(default=256 << 20, gt=0)
    """An upstream answer that grows past it is cut off and recorded as an error."""
    upstream_max_connections: int = Field(default=4096, gt=0)
    """How many connections to model servers a process may have."""
    upstream_timeout_seconds: Seconds = 300
    """For one try, from sending the request to the last byte of the answer."""
    upstream_connect_timeout_seconds: Seconds = 10
    """For connecting to a model server, within one try."""
    upstream_tries: int = Field(default=6, ge=1)
    """How often a call is tried in all."""
    endpoint_cooldown_seconds: Seconds = 5
    """How long an endpoint that failed is passed over; doubles with each further failure, up to a minute."""
    disconnect_grace_seconds: float = Field(default=30, ge=0)
    """How long a call whose client has gone may still run, so that its answer is there for a retry."""
    keep_alive_seconds: Seconds = 15
    """Silence on a stream after which a comment is sent."""
    close_timeout_seconds: Seconds = 30
    """How long the gateway tries to record a call while Redis is away, before it gives up and answers 503."""
    payload_version: int = Field(default=2, ge=1, le=2)
    """How calls are recorded: each whole (1), or without what earlier calls of the rollout already say (2)."""
    prefix_memory_bytes: int = Field(default=64 << 20, ge=0)
    """What this process remembers of recorded calls so that later ones can go on from them; 0 records all whole."""
    retry_after_seconds: int = Field(default=5, ge=1)
    """What clients are told to wait when Redis is away."""
    shutdown_grace_seconds: int = Field(default=60, ge=0)
    """How long calls in flight may run on after SIGTERM."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """What is logged at least: debug, info, warning or error."""

    @property
    def default_run(self) -> RunSettings:
        """The rules that run `default` begins with."""
        return RunSettings(
            model=self.model,
            train_temperature=self.train_temperature,
            val_temperature=self.val_temperature,
            include_log_probs=self.include_log_probs,
            return_routed_experts=self.return_routed_experts,
            when_paused=self.when_paused,
            hold_timeout_seconds=self.hold_timeout_seconds,
            max_calls_per_attempt=self.max_calls_per_attempt,
            max_tokens_per_attempt=self.max_tokens_per_attempt,
        )

    def check(self) -> None:
        """Refuse to let strangers in by mistake.

        Raises:
            UnsafeSettings: the address is not a loopback one and the key is empty or well known.
        """
        key = self.key.get_secret_value()
        if self.insecure or is_loopback(self.host):
            return
        if not key:
            raise UnsafeSettings(
                f"host {self.host} can be reached from elsewhere and the key is empty, so anyone could use it: "
                "set LEYDEN_KEY, or listen on 127.0.0.1, or pass --insecure"
            )
        if key.lower() in WELL_KNOWN_KEYS:
            raise UnsafeSettings(
                f"host {self.host} can be reached from elsewhere and the key is one that anyone would try: "
                "set LEYDEN_KEY to a random one, or pass --insecure"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than `localhost` counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
