"""A Messages request → the body of a chat completion, and of vLLM's tokenizer."""

from __future__ import annotations

from leyden_gateway.protocols.anthropic.prompt import chat_messages, continues
from leyden_gateway.protocols.anthropic.request import FreeChoice, NamedChoice, Prompt, Request
from leyden_gateway.protocols.protocol import JSON, AgentError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

_THINKS = {"enabled": True, "disabled": False}
"""What chat templates are told; any other kind of thinking is left to their default."""

_SAME = ("max_tokens", "temperature", "top_p", "top_k", "seed")


def chat_body(request: Request) -> JSON:
    """The chat completion that samples what the request asks for.

    Raises:
        AgentError: it asks for a tool, and there are none.
    """
    body = _prompt(request)
    for name in _SAME:
        if (value := getattr(request, name)) is not None:
            body[name] = value
    if request.stop_sequences:
        body["stop"] = request.stop_sequences
    body |= _tool_choice(request)
    body |= _output(request)
    if request.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def tokenizer_body(prompt: Prompt) -> JSON:
    """The request to vLLM's `/tokenize` that renders the same prompt as the chat completion."""
    body = _prompt(prompt)
    if prompt.output_config and prompt.output_config.effort is not None:
        # A parameter of chat completions that the tokenizer knows only as what it is there, one of the template.
        body.setdefault("chat_template_kwargs", {})["reasoning_effort"] = prompt.output_config.effort
    return body


def _prompt(prompt: Prompt) -> JSON:
    body: JSON = {"model": prompt.model, "messages": chat_messages(prompt)}
    if continues(prompt):
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    template = dict(prompt.chat_template_kwargs or {})
    if prompt.thinking and prompt.thinking.type in _THINKS:
        template.setdefault("enable_thinking", _THINKS[prompt.thinking.type])
    if template:
        body["chat_template_kwargs"] = template
    if prompt.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({} if tool.description is None else {"description": tool.description}),
                    "parameters": tool.input_schema,
                    **({} if tool.strict is None else {"strict": tool.strict}),
                },
            }
            for tool in prompt.tools
        ]
    return body


def _tool_choice(request: Request) -> JSON:
    match request.tool_choice:
        case None:
            return {}
        case FreeChoice(type="auto" | "none") if not request.tools:
            return {}
        case _ if not request.tools:
            raise AgentError("tool_choice: there are no tools to choose from")
        case FreeChoice(type=kind, disable_parallel_tool_use=single):
            chosen: str | JSON = _CHOICES[kind]
        case NamedChoice(name=name, disable_parallel_tool_use=single):
            if name not in {tool.name for tool in request.tools}:
                raise AgentError(f"tool_choice.name: there is no tool {name!r}")
            chosen = {"type": "function", "function": {"name": name}}
    return {"tool_choice": chosen} | ({"parallel_tool_calls": False} if single else {})


def _output(request: Request) -> JSON:
    config, body = request.output_config, {}
    if config and config.effort is not None:
        body["reasoning_effort"] = config.effort
    if config and config.format is not None:
        schema = {"name": "output", "schema": config.format.json_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body
