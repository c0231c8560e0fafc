"""What a model may say, as hypothesis strategies: texts, calls of tools, why it stopped."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine draws its first examples slowly."""

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
spoken = texts.filter(bool)
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


def tool_calls(arguments: st.SearchStrategy[str] = texts) -> st.SearchStrategy[list[dict[str, Any]]]:
    """At most three calls of functions, as chat messages hold them."""
    call = st.builds(
        lambda name, given, number: {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": given},
        },
        st.sampled_from(["search", "add"]),
        arguments,
        st.integers(0, 99),
    )
    return st.lists(call, max_size=3)
