"""The objects of the HTTP API, as Agent Lightning v1.0 defines them, with Leyden's additions.

Invariants:
- what a client may leave out has the contract's default;
- an unknown field is refused where the contract forbids it or where it would silently change how an agent runs
  (`config`), and kept where the contract says so (`metadata`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from leyden.concealing import without_credentials
from leyden.variables import OWN_VARIABLES

DEFAULT_ATTEMPT = "0"
DEFAULT_RUN = "default"
BUDGETS = ("max_calls_per_attempt", "max_tokens_per_attempt")
"""What a run, or a rollout for itself, may limit; scripts know these names too."""

_NAME = re.compile(r"[A-Za-z0-9._~@=+-]{1,200}")


def is_name(value: str) -> bool:
    """Whether a run, rollout or attempt may be called that."""
    return _NAME.fullmatch(value) is not None and value not in (".", "..")


def _name(value: str) -> str:
    if not is_name(value):
        allowed = "1 to 200 of letters, digits and . _ ~ @ = + -, and not . or .."
        raise ValueError(f"{value[:250]!r} is not a valid name: {allowed}")
    return value


def _rollout_id(value: str) -> str:
    if value in RESERVED_IDS:
        raise ValueError(f"{value!r} can't be a rollout's id: it stands for something else in the API's addresses")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""A run, rollout or attempt id: it stands in Redis keys and URLs, so it may not contain `:`, `/`, `{` or spaces."""

RESERVED_IDS = frozenset({"terminal"})
"""What follows `/api/rollouts/` and is no rollout."""

RolloutId = Annotated[Name, AfterValidator(_rollout_id)]
"""The id of a rollout that is to be created."""


class State(StrEnum):
    """Where a rollout is in its life; the last two are final."""

    QUEUING = "queuing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        return self in (State.SUCCEEDED, State.FAILED)


class LocalConfig(BaseModel):
    """How the local runner starts the agent: exactly one of `agent_class` and `command`, or neither for a foreign
    controller."""

    model_config = ConfigDict(extra="forbid")

    agent_class: str | None = None
    command: str | list[str] | None = None
    cwd: str | None = None
    env_map: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way_to_start(self) -> LocalConfig:
        if self.agent_class and self.command:
            raise ValueError(f"agent_class {self.agent_class!r} and command {self.command!r} are both set; give one")
        return self

    @field_validator("agent_class", "command", "cwd")
    @classmethod
    def _no_nul(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and any("\0" in part for part in ([value] if isinstance(value, str) else value)):
            raise ValueError(f"{str(value)[:250]!r} contains a NUL character, which no process can be started with")
        return value

    @field_validator("env_map")
    @classmethod
    def _leaves_our_variables(cls, env_map: dict[str, str]) -> dict[str, str]:
        if taken := sorted(OWN_VARIABLES & env_map.keys()):
            raise ValueError(
                f"{', '.join(taken)} can't be mapped: an agent is reached and recorded through what it holds"
            )
        return env_map


class K8sConfig(BaseModel):
    """How the Kubernetes runner starts the agent: a Jinja2 template of one `batch/v1` Job."""

    model_config = ConfigDict(extra="forbid")

    job_template: str | None = None


class RolloutConfig(BaseModel):
    """How controllers run a rollout."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: int = Field(default=3600, gt=0)
    max_attempts: int = Field(default=1, ge=1)
    max_infra_attempts: int = Field(default=3, ge=1)
    max_calls_per_attempt: int | None = Field(default=None, ge=1)
    max_tokens_per_attempt: int | None = Field(default=None, ge=1)
    """Budgets of this rollout in place of its run's; None leaves the run's."""
    local: LocalConfig | None = None
    k8s: K8sConfig | None = None


class RolloutMetadata(BaseModel):
    """What the trainer wants to find again on a rollout; any further fields are kept."""

    model_config = ConfigDict(extra="allow")

    batch_idx: int | None = None
    sample_idx_in_batch: int | None = None


class NewRollout(BaseModel):
    """A rollout to be created. With a `rollout_id` of the caller's own, creation may be repeated."""

    input: Any
    is_train: bool = True
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: RolloutMetadata = Field(default_factory=RolloutMetadata)
    rollout_id: RolloutId | None = None

    @field_validator("config", "metadata", mode="before")
    @classmethod
    def _null_means_default(cls, value: Any) -> Any:
        return {} if value is None else value


class Status(BaseModel):
    """A rollout's state as its log says; `version` rises by one with each change, times are Unix seconds."""

    state: State = State.QUEUING
    k8s_job_name: str | None = None
    last_attempt_id: str | None = None
    error_message: str | None = None
    version: int = 1
    created_at: float
    updated_at: float


class Rollout(BaseModel):
    """One run of an agent on one input."""

    rollout_id: str
    input: Any
    is_train: bool = True
    config: RolloutConfig
    metadata: RolloutMetadata
    status: Status


class Spent(BaseModel):
    """What an attempt's recorded calls have used, and the budget, if any, for which it was refused a further one."""

    calls: int = 0
    tokens: int = 0
    refused: str | None = None


class RolloutDetail(BaseModel):
    """A rollout with the attempts that have events, by first event, and what each attempt has used of its budget."""

    rollout: Rollout
    attempts: list[str]
    spent: dict[str, Spent] = Field(default_factory=dict)


class StatusPatch(BaseModel):
    """A change of a rollout's status; fields that are not set stay as they are."""

    model_config = ConfigDict(extra="forbid")

    state: State | None = None
    k8s_job_name: str | None = None
    last_attempt_id: Name | None = None
    error_message: str | None = None


class RolloutPatch(BaseModel):
    """The body of PATCH: nothing but the status may change."""

    model_config = ConfigDict(extra="forbid")

    status: StatusPatch | None = None


class Event(BaseModel):
    """Something that happened to a rollout, in its order; `timestamp` in Unix seconds."""

    event_type: str
    rollout_id: str
    attempt_id: str
    timestamp: float
    data: dict[str, Any]


class NewEvent(BaseModel):
    """An event to be appended; with an `event_id`, appending it may be repeated."""

    event_type: str = Field(min_length=1, max_length=200)
    data: dict[str, Any] = Field(default_factory=dict)
    event_id: Name | None = None


class Model(BaseModel):
    """A model server, keyed by (model, endpoint); the endpoint includes `/v1`."""

    model: str = Field(min_length=1)
    endpoint: str = Field(pattern=r"^https?://\S+$")
    version: int | str = 0

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            address = urlsplit(value)
            sound = bool(address.hostname) and address.port != 0 and not address.query and not address.fragment
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(f"{value[:250]!r} is not an endpoint: http://HOST:PORT/v1, without a query")
        return value

    @property
    def shown_endpoint(self) -> str:
        """The endpoint without a user and password, for whoever may not know them."""
        return without_credentials(self.endpoint)


class PauseRequest(BaseModel):
    """How long refused clients are told to wait, and why."""

    retry_after_seconds: int = Field(default=5, ge=0)
    reason: str | None = None


class PauseState(BaseModel):
    """Whether new calls are held back, and how many were already forwarded."""

    paused: bool = False
    retry_after_seconds: int = 5
    reason: str | None = None
    inflight: int = 0


class TerminalItem(BaseModel):
    """A finished rollout, without its payload."""

    rollout_id: str
    state: State
    data_id: str
    is_train: bool


class TerminalPage(BaseModel):
    """Finished rollouts in completion order; `next_after` asks for the following page."""

    items: list[TerminalItem]
    next_after: int
    total_terminal: int


def data_id_of(rollout_input: Any) -> str:
    """The id that a rollout's input gives itself: `data_id`, else `instance_id`, else the empty string."""
    if not isinstance(rollout_input, dict):
        return ""
    return str(rollout_input.get("data_id") or rollout_input.get("instance_id") or "")
