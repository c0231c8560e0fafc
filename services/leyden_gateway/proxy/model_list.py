"""The list of models, for clients that look which there are before they call one; no call, and not recorded."""

from __future__ import annotations

import time
from typing import Any

import orjson

from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import NoSuchRoute
from leyden_gateway.protocols.anthropic import model_list as anthropic
from leyden_gateway.proxy.client import Client

JSON = dict[str, Any]


def _openai_card(name: str) -> JSON:
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "leyden"}


def _openai_listing(cards: list[JSON]) -> JSON:
    return {"object": "list", "data": cards}


_CARDS = {"openai": _openai_card, "anthropic": anthropic.card}
_LISTINGS = {"openai": _openai_listing, "anthropic": anthropic.listing}


async def list_models(gateway: Gateway, client: Client, provider: str, rollout_id: str, name: str | None) -> None:
    """Answer with the models of a rollout's run, or with one of them, in the provider's shape.

    Raises:
        NoSuchRoute: there is no model of this name.
        RolloutMissing, RunMissing, LogUnavailable
    """
    location = await gateway.locations.locate(rollout_id)
    view = await gateway.views.recent(location.run)
    names = [view.settings.model] if view.settings.model else sorted({model.model for model in view.models})
    card = _CARDS[provider]
    if name is None:
        await client.respond(200, orjson.dumps(_LISTINGS[provider]([card(each) for each in names])))
        return
    if name not in names:
        raise NoSuchRoute(f"The model '{name}' does not exist; there are {names}")
    await client.respond(200, orjson.dumps(card(name)))
