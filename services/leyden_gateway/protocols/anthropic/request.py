"""The shape of a Messages request.

Invariants:
- a parameter or block that has no place here is refused by its name, and never dropped in silence;
- state that the provider would keep between requests is refused in the way in which its clients go on without;
- what only concerns the provider's own service (caching, tiers, billing) is tolerated and changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from leyden_gateway.protocols.protocol import JSON, AgentError

TOLERATED = frozenset(
    {"betas", "cache_control", "context_management", "diagnostics", "inference_geo", "metadata", "service_tier"}
    | {"speed", "user_profile_id", "workspace_id"}
)
"""Parameters of the provider's service that say nothing about what is to be sampled."""


def _texts(value: Any) -> Any:
    """A string is short for one text block."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Part(BaseModel):
    """A part of a request; fields that concern the provider's service alone (`cache_control`, …) are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Text(Part):
    type: Literal["text"]
    text: str


class Base64Source(Part):
    type: Literal["base64"]
    media_type: str
    data: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(Part):
    type: Literal["url"]
    url: str


class Image(Part):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class Thinking(Part):
    type: Literal["thinking"]
    thinking: str


class RedactedThinking(Part):
    type: Literal["redacted_thinking"]


class ToolUse(Part):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JSON


class ToolResult(Part):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        list[Annotated[Text | Image, Field(discriminator="type")]], BeforeValidator(lambda value: _texts(value or []))
    ] = []
    is_error: bool | None = None


class System(Part):
    role: Literal["system"]
    content: Annotated[list[Text], BeforeValidator(_texts)]


class User(Part):
    role: Literal["user"]
    content: Annotated[list[Annotated[Text | Image | ToolResult, Field(discriminator="type")]], BeforeValidator(_texts)]


class Assistant(Part):
    role: Literal["assistant"]
    content: Annotated[
        list[Annotated[Text | Thinking | RedactedThinking | ToolUse, Field(discriminator="type")]],
        BeforeValidator(_texts),
    ]


class Tool(Part):
    """A tool that the agent itself runs; those that run at the provider exist only there."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: JSON
    strict: bool | None = None


class FreeChoice(Part):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class NamedChoice(Part):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class OutputFormat(Part):
    type: Literal["json_schema"]
    json_schema: JSON = Field(alias="schema")


class OutputConfig(Part):
    effort: str | None = None
    format: OutputFormat | None = None


class ThinkingConfig(Part):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class Prompt(BaseModel):
    """What a request says about the prompt: all that counting its tokens needs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: list[Annotated[User | Assistant | System, Field(discriminator="role")]] = Field(min_length=1)
    system: Annotated[list[Text], BeforeValidator(lambda value: _texts(value or []))] = []
    tools: list[Tool] | None = None
    tool_choice: Annotated[FreeChoice | NamedChoice, Field(discriminator="type")] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: JSON | None = None
    """Not the provider's: for the model server's chat template."""


class Request(Prompt):
    """The whole of a request."""

    max_tokens: int = Field(gt=0)
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = None
    seed: int | None = None
    """Not the provider's: for the model server's sampler."""


_Shape = TypeVar("_Shape", bound=Prompt)


def read_request(asked: JSON) -> Request:
    """The request of a body.

    Raises:
        AgentError: it is none, or asks for what can't be done here; the message names the parameter.
    """
    if asked.get("thread") is not None:
        raise AgentError("thread: no conversation is kept here; send it whole", code="thread_unsupported_request")
    return _read(Request, asked)


def read_prompt(asked: JSON) -> Prompt:
    """The prompt of a body whose tokens are to be counted.

    Raises:
        AgentError: as `read_request`.
    """
    return _read(Prompt, asked)


def _read(shape: type[_Shape], asked: JSON) -> _Shape:
    try:
        return shape.model_validate({name: value for name, value in asked.items() if name not in TOLERATED})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise AgentError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
