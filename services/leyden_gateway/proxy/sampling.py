"""The run's sampling rules: what an agent may choose about how tokens are drawn, and what it may not.

Invariants:
- in train mode every token is drawn from the model's own distribution at the run's temperature, so that the recorded
  log probs are those of the distribution the trainer computes gradients for;
- neutral values are sent rather than left out, since a server fills what is left out from the model's own defaults;
- whatever the agent asked for and did not get is returned, for the record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from leyden.log.runs import RunSettings

JSON = dict[str, Any]


class Mode(StrEnum):
    """What a call is for; part of the URL that an agent is given."""

    TRAIN = "train"
    VAL = "val"


NEUTRAL: JSON = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Parameters that reshape the distribution, with the value at which they don't."""

REFUSED = (
    "logit_bias",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "use_beam_search",
    "best_of",
    "typical_p",
    "top_a",
    "length_penalty",
)
"""Parameters that reshape or select and have no value worth sending: they are left out."""


def apply_rules(body: JSON, settings: RunSettings, mode: Mode, model: str) -> JSON:
    """Change `body` to what the run allows, and return what the agent had asked for instead, by parameter."""
    asked: JSON = {}
    _override(body, "model", model, asked)
    if mode is Mode.VAL:
        _override(body, "temperature", settings.val_temperature, asked)
        return asked
    _override(body, "temperature", settings.train_temperature, asked)
    for name, neutral in NEUTRAL.items():
        _override(body, name, neutral, asked)
    for name in REFUSED:
        if name in body:
            asked[name] = body.pop(name)
    return asked


def _override(body: JSON, name: str, value: Any, asked: JSON) -> None:
    if name in body and body[name] != value:
        asked[name] = body[name]
    body[name] = value
