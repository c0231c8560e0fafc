"""The models that may be called, as Anthropic's API lists them."""

from __future__ import annotations

from leyden_gateway.protocols.protocol import JSON


def card(name: str) -> JSON:
    """One model."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",  # the provider's own way to say that it is not known
        "lifecycle": "active",
    }


def listing(cards: list[JSON]) -> JSON:
    """All of them, on one page."""
    ids = [each["id"] for each in cards]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"data": cards, "has_more": False, "first_id": first, "last_id": last}
