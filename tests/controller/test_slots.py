"""How many agents may run."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden_controller.slots import Slots


@given(total=st.integers(1, 5), kept=st.lists(st.integers(0, 5), max_size=10))
async def test_no_more_are_ever_reserved_than_there_are(total, kept):
    slots, held = Slots(total), 0
    for wanted in kept:
        if slots.free == 0:
            slots.release(held)
            held = 0
        reserved = await slots.reserve()
        keep = min(wanted, reserved)
        slots.release(reserved - keep)
        held += keep
        assert held + slots.free == total


async def test_they_are_handed_out_in_the_order_in_which_they_were_asked_for():
    slots = Slots(1)
    await slots.reserve()
    order: list[str] = []

    async def ask(name: str) -> None:
        order.append(f"{name} got {await slots.reserve()}")

    asking = [asyncio.create_task(ask(name)) for name in "abc"]
    for _ in asking:
        await asyncio.sleep(0)
        slots.release(1)
        await asyncio.sleep(0.01)

    assert order == ["a got 1", "b got 1", "c got 1"]


async def test_giving_back_what_was_not_taken_is_an_error():
    with pytest.raises(ValueError, match="2 slots"):
        Slots(3).release(2)
