"""What a call's event has in common with earlier calls of its rollout, taken out of it.

Shared can be: token ids of a prompt, which often go on where an earlier prompt and its answer ended; lists (messages,
tools), objects (a schema) and long texts among the parameters of the request; the experts of a prompt's tokens.

Invariants:
- a reference says that a part begins with so many elements of an earlier call's, which is on record;
- the data given is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from leyden.log.columns import ID_BYTES, Columns, Path, id_bytes, without_columns
from leyden.log.experts import Experts, column, experts_in
from leyden.log.prefixes import Between, Comparison, NewMarks, Prefixes
from leyden.log.restoring import Call, ids_of

_IDS = "ids"
_EXPERTS = "routed_experts"
_REQUESTS = ("request", "original")
"""Parts of an event that hold what an agent asked."""

_SHARED = frozenset({list, dict, str})

_WORTH_BYTES = 160
"""A reference takes about a fifth of it."""

_IDS_APART, _IDS_BEFORE_END = 2048, 16
_TEXT_APART = 4096
"""Marks inside a long sequence, for one that takes another way there."""


class SharedColumns(Columns):
    """The columns of a call, without what it shares with earlier calls.

    Works on what `orjson.loads` gives; on anything else it may raise TypeError or ValueError.
    """

    def __init__(self, earlier: Prefixes) -> None:
        super().__init__(tokens_apart=True)
        self._earlier = earlier
        self.bases: list[str] = []
        """The calls that are referred to."""
        self.marks: NewMarks = {}
        self._prompt: list[Any] = []
        self._sampled: list[Any] = []
        self._ids: Comparison | None = None

    def without_shared(self, data: Call) -> dict[str, Any]:
        """The event without its columns and without what is shared; it can be written by orjson only."""
        self._prompt, self._sampled = ids_of(data)
        bare = {**data}
        response = data.get("response")
        if isinstance(response, dict):
            bare["response"] = without_columns(response, self)
        if (experts := experts_in(data.get(_EXPERTS))) is not None:
            bare[_EXPERTS] = None
            self._take_experts(experts)
        for name in _REQUESTS:
            part = data.get(name)
            if isinstance(part, dict):
                bare[name] = {
                    key: self._parameter(name, key, value) if type(value) in _SHARED else value
                    for key, value in part.items()
                }
        return bare

    def take(self, path: Path, values: Any) -> bool:
        if path[-1] == "prompt_token_ids":
            return self._take_prompt(path, values)
        if values is not self._sampled or self._ids is None:
            return super().take(path, values)
        ids = id_bytes(values)
        if ids is None:
            return False
        self.add_ids(path, len(values), ids)
        self._go_on(self._ids, ids)
        return True

    def _take_prompt(self, path: Path, values: Any) -> bool:
        prompt = id_bytes(values)
        if prompt is None:
            return False
        ids, end = Comparison(self._earlier.of(_IDS)), len(values)
        # What a chat template puts at the end of a prompt may not be there when the conversation goes on.
        near_end = (end - _IDS_BEFORE_END) // 32 * 32
        marked, view = (*range(_IDS_APART, near_end, _IDS_APART), near_end, end), memoryview(prompt)
        ids.read(lambda start, stop: view[ID_BYTES * start : ID_BYTES * stop], marked)
        self.add_ids(path, end - ids.shared, prompt[ID_BYTES * ids.shared :], *self._base(ids))
        if values is self._prompt:
            self._ids = ids
            self._note(_IDS, ids)
        return True

    def _go_on(self, ids: Comparison, sampled: bytes) -> None:
        """Mark the end of the answer, with which the next prompt often begins."""
        prompt = len(self._prompt)
        ids.read(
            lambda start, stop: sampled[ID_BYTES * (start - prompt) : ID_BYTES * (stop - prompt)],
            (prompt + len(self._sampled),),
        )
        self._note(_IDS, ids)

    def _take_experts(self, experts: Experts) -> None:
        count = experts.count
        # Of the last token sampled, the experts may be known only when it is part of a prompt.
        marked = sorted({*range(_IDS_APART, count, _IDS_APART), count - 1, count} - {0})
        rows = Comparison(self._earlier.of(_EXPERTS))
        rows.read(experts.between, marked)
        self._note(_EXPERTS, rows)
        own = column(experts.head, experts.between(rows.shared, count))
        self.places.append([[_EXPERTS], "e", len(own), *self._base(rows)])
        self.blobs.append(own)

    def _parameter(self, part: str, key: str, value: Any) -> Any:
        """What stays in the skeleton of a parameter."""
        kind = type(value)
        if kind is list and value:
            if type(value[0]) is int and self._take_prompt([part, key], value):
                return None
            return self._elements([part, key], list(map(orjson.dumps, value)))
        if kind is dict and value:
            return self._whole([part, key], orjson.dumps(value))
        if kind is str and len(value) >= _WORTH_BYTES:
            return self._text([part, key], value.encode())
        return value

    def _elements(self, path: Path, texts: list[bytes]) -> orjson.Fragment:
        shared = 0
        if sum(map(len, texts)) >= _WORTH_BYTES:
            # The first message is common to most conversations, and the last is often written anew for each call.
            marked = (1, len(texts) - 1, len(texts)) if len(texts) > 2 else range(1, len(texts) + 1)
            shared = self._compare("l", path, lambda start, stop: b"\0".join((*texts[start:stop], b"")), marked)
        return orjson.Fragment(b"[" + b",".join(texts[shared:]) + b"]")

    def _whole(self, path: Path, text: bytes) -> orjson.Fragment | None:
        if len(text) >= _WORTH_BYTES and self._compare("v", path, lambda start, stop: text, (1,)):
            return None
        return orjson.Fragment(text)

    def _text(self, path: Path, text: bytes) -> str:
        end = len(text)
        apart = [_character(text, place) for place in range(_TEXT_APART, end, _TEXT_APART)]
        shared = self._compare("s", path, lambda start, stop: text[start:stop], (*apart, end))
        return text[shared:].decode()

    def _compare(self, typecode: str, path: Path, between: Between, marked: Sequence[int]) -> int:
        """How many elements of a sequence are shared and referred to; it ends at the last length of `marked`."""
        name = f"{typecode} {path[0]}.{path[1]}"
        sequence = Comparison(self._earlier.of(name))
        sequence.read(between, marked)
        self._note(name, sequence)
        if sequence.shared:
            self.places.append([path, typecode, 0, *self._base(sequence)])
        return sequence.shared

    def _note(self, name: str, sequence: Comparison) -> None:
        self.marks[name] = [mark for mark in sequence.marks if mark[0] > sequence.shared]

    def _base(self, sequence: Comparison) -> tuple[int, ...]:
        """The place of the earlier call among those referred to, and how much is shared; nothing if nothing is."""
        if sequence.call is None:
            return ()
        if sequence.call not in self.bases:
            self.bases.append(sequence.call)
        return self.bases.index(sequence.call), sequence.shared


def _character(text: bytes, place: int) -> int:
    """The start of the character that the byte at `place` belongs to."""
    while text[place] & 0xC0 == 0x80:
        place -= 1
    return place
