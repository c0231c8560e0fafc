"""A Messages prompt → chat messages.

Invariants:
- consecutive turns of one role are one turn, as the provider has it;
- results of tools directly follow the turn that called them, whatever else their turn says;
- the same conversation, continued, gives the same messages and further ones, so that its prompts share their prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from leyden_gateway.protocols.anthropic.request import (
    Assistant,
    Image,
    Prompt,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from leyden_gateway.protocols.protocol import JSON

_BILLING = "x-anthropic-billing-header"
"""Opens a system block with which Claude Code signs each request; it is no part of the prompt, and never the same."""


def chat_messages(prompt: Prompt) -> list[JSON]:
    """The messages of a chat completion that says the same."""
    messages = _system(prompt.system)
    for role, turns in groupby(prompt.messages, key=lambda turn: turn.role):
        messages += _SAID_BY[role]([block for turn in turns for block in turn.content])
    return messages


def continues(prompt: Prompt) -> bool:
    """Whether the answer goes on where the agent's own last words end."""
    last = prompt.messages[-1]
    return isinstance(last, Assistant) and any(isinstance(block, Text) for block in last.content[-1:])


def _system(blocks: Iterable[Text]) -> list[JSON]:
    said = [block.text for block in blocks if not block.text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(said)}] if said else []


def _user(blocks: Sequence[Text | Image | ToolResult]) -> list[JSON]:
    results = [block for block in blocks if isinstance(block, ToolResult)]
    said: list[Text | Image] = [part for result in results for part in result.content if isinstance(part, Image)]
    said += [block for block in blocks if not isinstance(block, ToolResult)]
    messages = [_result(result) for result in results]
    if said or not results:
        messages.append({"role": "user", "content": _content(said)})
    return messages


def _result(result: ToolResult) -> JSON:
    text = "\n".join(part.text for part in result.content if isinstance(part, Text))
    if not text and result.is_error:
        text = "error"
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": text}


def _content(blocks: Sequence[Text | Image]) -> str | list[JSON]:
    """Text alone as a string, which every server and template takes; with images as parts."""
    if not any(isinstance(block, Image) for block in blocks):
        return "\n".join(block.text for block in blocks if isinstance(block, Text))
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, Text)
        else {"type": "image_url", "image_url": {"url": block.source.url}}
        for block in blocks
    ]


def _assistant(blocks: Sequence[Text | Thinking | RedactedThinking | ToolUse]) -> list[JSON]:
    # Blocks of an answer are pieces of one text: nothing stood between them when it was sampled.
    text = "".join(block.text for block in blocks if isinstance(block, Text))
    thought = "".join(block.thinking for block in blocks if isinstance(block, Thinking))
    calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
    message: JSON = {"role": "assistant", "content": text or None if calls else text}
    if thought:
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(block: ToolUse) -> JSON:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


_SAID_BY: dict[str, Callable[[list[Any]], list[JSON]]] = {"system": _system, "user": _user, "assistant": _assistant}
