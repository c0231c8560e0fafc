"""The trainer's settings: the `leyden:` section of its configuration, checked before anything starts.

Invariants:
- an unknown name is an error that says where it stands and what may have been meant;
- every problem is named at once, each by the name under which it was set.
"""

import difflib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from leyden.log.runs import RunSettings
from leyden.schemas import DEFAULT_RUN, K8sConfig, LocalConfig, Name, RolloutConfig
from leyden_trainer.ids import MAX_RUN_LENGTH
from leyden_trainer.old_names import OldNamesInvalid, with_old_names
from leyden_trainer.rewards import is_reward
from leyden_trainer.samples import Aggregation, Level

READER = "trainer"


class SettingsInvalid(ValueError):
    """The configuration can't be trained with; the message lists every reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class K8sSettings(_Section):
    """How Kubernetes runs the agent."""

    job_template_path: str | None = None


class TraceAggregator(_Section):
    """How calls become rows; lengths in tokens."""

    level: Level = Level.TRAJECTORY
    trajectory_max_prompt_length: int = Field(default=2048, gt=0)
    trajectory_max_response_length: int = Field(default=8192, gt=0)
    trajectory_max_total_length: int | None = Field(default=None, gt=0)


class AsyncRollout(_Section):
    """Asking for more prompts than a step trains on."""

    enabled: bool = False
    async_train_batch_size: int | None = Field(default=None, gt=0)


class EngineKind(StrEnum):
    """Whose model servers sample: verl's own replicas, or servers that run elsewhere."""

    VERL = "verl"
    EXTERNAL = "external"


class EngineSettings(_Section):
    """Model servers. `weights_dir` is where the trainer writes, `server_weights_dir` the same place for the servers."""

    kind: EngineKind = EngineKind.VERL
    model: str | None = None
    urls: list[str] = Field(default_factory=list)
    weights_dir: str | None = None
    server_weights_dir: str | None = None
    timeout_seconds: float = Field(default=600, gt=0)

    @field_validator("urls")
    @classmethod
    def _absolute(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} must begin with http:// or https://")
        return urls

    @model_validator(mode="after")
    def _external_is_complete(self) -> Self:
        needed = {"model": self.model, "urls": self.urls, "weights_dir": self.weights_dir}
        missing = [name for name, value in needed.items() if not value]
        if self.kind is EngineKind.EXTERNAL and missing:
            raise ValueError(f"kind external also needs {', '.join(missing)}")
        return self


class FailedRollouts(StrEnum):
    """What becomes of a rollout that failed in every try: left out, or trained on with the fill reward."""

    DROP = "drop"
    FILL = "fill"


class LeydenSettings(_Section):
    """Everything under `leyden:`. Times in seconds."""

    redis_url: str | None = None
    run: Name
    branch: str | None = Field(default=None, pattern=r"^[a-z0-9]{1,16}$")
    lease_seconds: float = Field(default=30, gt=0)
    extra_readers: list[Name] = Field(default_factory=list)

    hooks: str | None = None
    rollout_timeout_seconds: int = Field(default=1800, gt=0)
    max_attempts: int = Field(default=1, ge=1)
    max_infra_attempts: int = Field(default=3, ge=1)
    max_calls_per_attempt: int | None = Field(default=None, ge=1)
    max_tokens_per_attempt: int | None = Field(default=None, ge=1)
    rollout_tries: int = Field(default=2, ge=1)
    local: LocalConfig = Field(default_factory=LocalConfig)
    k8s: K8sSettings = Field(default_factory=K8sSettings)

    val_temperature: float = Field(default=0.7, ge=0)
    return_routed_experts: bool = False
    agents_may_reward: bool = True

    reward_fillna_value: float = 0.0
    failed_rollouts: FailedRollouts = FailedRollouts.DROP
    max_ppo_update_times: int | None = Field(default=None, gt=0)
    trace_aggregator: TraceAggregator = Field(default_factory=TraceAggregator)
    async_rollout: AsyncRollout = Field(default_factory=AsyncRollout)

    engines: EngineSettings = Field(default_factory=EngineSettings)

    log_timeout_seconds: float = Field(default=300, gt=0)
    progress_timeout_seconds: float = Field(default=3600, gt=0)
    drain_timeout_seconds: float = Field(default=600, gt=0)
    hold_timeout_seconds: float = Field(default=3600, gt=0)

    @field_validator("run")
    @classmethod
    def _run_of_its_own(cls, run: str) -> str:
        if run == DEFAULT_RUN:
            raise ValueError(
                f"{DEFAULT_RUN!r} is the run of clients that know no runs; give training a name of its own"
            )
        if len(run) > MAX_RUN_LENGTH:
            raise ValueError(f"{run!r} has {len(run)} characters, at most {MAX_RUN_LENGTH} leave room for rollout ids")
        return run

    @field_validator("reward_fillna_value", mode="before")
    @classmethod
    def _fill_is_a_reward(cls, value: Any) -> Any:
        if not is_reward(value):
            raise ValueError(f"{value!r} is not a finite number")
        return value

    @field_validator("extra_readers")
    @classmethod
    def _readers_are_others(cls, readers: list[str]) -> list[str]:
        if READER in readers or len(set(readers)) != len(readers):
            raise ValueError(f"{readers} must be names other than {READER!r}, each once")
        return readers

    @classmethod
    def from_config(cls, config: DictConfig | Mapping[str, Any]) -> Self:
        """Read `leyden:` and its old name `agentlightning:`; `run` falls back to `trainer.experiment_name`.

        Raises:
            SettingsInvalid: an unknown name or a value that can't be.
        """
        plain = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
        assert isinstance(plain, Mapping)
        given = dict(plain.get("leyden") or {})  # type: ignore[arg-type]
        experiment = (plain.get("trainer") or {}).get("experiment_name")  # type: ignore[union-attr]
        given.setdefault("run", experiment)
        try:
            given = with_old_names(given, plain.get("agentlightning"), _defaults())  # type: ignore[arg-type]
            return cls.model_validate(given)
        except OldNamesInvalid as error:
            raise SettingsInvalid(error.problems) from error
        except ValidationError as error:
            raise SettingsInvalid(_problems(error)) from error

    def rollout_config(self) -> RolloutConfig:
        """How controllers run this run's rollouts; reads the Job template.

        Raises:
            SettingsInvalid: the template can't be read.
        """
        path = self.k8s.job_template_path
        try:
            template = None if path is None else Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsInvalid([f"leyden.k8s.job_template_path {path!r} can't be read: {error}"]) from error
        return RolloutConfig(
            timeout_seconds=self.rollout_timeout_seconds,
            max_attempts=self.max_attempts,
            max_infra_attempts=self.max_infra_attempts,
            local=self.local if self.local.agent_class or self.local.command else None,
            k8s=K8sConfig(job_template=template) if template is not None else None,
        )

    def run_settings(self, train_temperature: float) -> RunSettings:
        """The rules of the run's calls; `train_temperature` is verl's, since log probs are computed with it."""
        return RunSettings(
            model=self.engines.model,
            train_temperature=train_temperature,
            val_temperature=self.val_temperature,
            return_routed_experts=self.return_routed_experts,
            when_paused="hold",
            hold_timeout_seconds=self.hold_timeout_seconds,
            readers=[READER, *self.extra_readers],
            agents_may_reward=self.agents_may_reward,
            max_calls_per_attempt=self.max_calls_per_attempt,
            max_tokens_per_attempt=self.max_tokens_per_attempt,
        )

    def aggregation(self, max_prompt_length: int, max_response_length: int) -> Aggregation:
        """How calls become rows; the lengths given, which are verl's `data.max_…`, hold for transitions."""
        aggregator = self.trace_aggregator
        if aggregator.level is Level.TRANSITION:
            limits = (max_prompt_length, max_response_length, None)
        else:
            limits = (
                aggregator.trajectory_max_prompt_length,
                aggregator.trajectory_max_response_length,
                aggregator.trajectory_max_total_length,
            )
        return Aggregation(aggregator.level, *limits, routed_experts_required=self.return_routed_experts)


def _defaults() -> dict[str, Any]:
    return LeydenSettings(run="unnamed").model_dump(mode="json")


def _problems(error: ValidationError) -> list[str]:
    problems = []
    for each in error.errors():
        where = [str(part) for part in each["loc"]]
        if each["type"] == "extra_forbidden":
            problems.append(f"leyden.{'.'.join(where)} is not a setting{_meant(where)}")
        else:
            problems.append(f"{'.'.join(['leyden', *where])}: {each['msg'].removeprefix('Value error, ')}")
    return problems


def _meant(where: list[str]) -> str:
    known: Any = _defaults()
    for part in where[:-1]:
        known = known.get(part, {}) if isinstance(known, dict) else {}
    close = difflib.get_close_matches(where[-1], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"
