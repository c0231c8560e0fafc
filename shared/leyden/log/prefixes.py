"""What the calls of a rollout begin with, known by digests of prefixes instead of the calls themselves.

A *sequence* is a part of a call that may begin as one of an earlier call does: its token ids, its messages, its tools.
Of each, a few *marks* are kept: the number of elements of a prefix, its digest, and the call that has it.

Invariants:
- prefixes are taken to be equal only if their length and 128 bits of SHA-256 are;
- a `Prefixes` never changes, so one that was taken can be looked through in any thread;
- it takes a few kilobytes, however many calls a rollout makes and however long they are: older marks are thinned out,
  which costs later calls compactness and nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

_DIGEST_BYTES = 16
_MOST_MARKS = 48
"""Marks kept of one sequence."""
_MOST_SEQUENCES = 12
"""Sequences kept of one rollout; an agent names its parameters as it likes."""

_MARK_BYTES = _DIGEST_BYTES + 4 + 8
_SEQUENCE_BYTES = 420
_CALL_BYTES = 90
"""What they take in this process, about."""

Mark = tuple[int, bytes]
"""Length and digest of a prefix."""

NewMarks = dict[str, list[Mark]]
"""Of each sequence of a call, by its name, the prefixes that no earlier call had."""

Between = Callable[[int, int], bytes | memoryview]
"""The bytes of a sequence's elements from one place to another; different elements give different bytes."""


@dataclass(frozen=True, slots=True)
class Known:
    """The marks of one sequence, in the order in which they came."""

    counts: array[int] = field(default_factory=lambda: array("I"))
    digests: bytes = b""
    calls: tuple[str, ...] = ()

    def call_with(self, count: int, digest: bytes) -> str | None:
        """The first call that has this prefix."""
        place, misplaced = divmod(self.digests.find(digest), _DIGEST_BYTES)
        return self.calls[place] if not misplaced and place >= 0 and self.counts[place] == count else None

    def after(self, call_id: str, marks: Iterable[Mark]) -> Known:
        """With a call's marks added."""
        counts, digests, calls = array("I", self.counts), [self.digests], [*self.calls]
        for count, digest in marks:
            counts.append(count)
            digests.append(digest)
            calls.append(call_id)
        return Known(counts, b"".join(digests), tuple(calls))._thinned()

    def _thinned(self) -> Known:
        """With every other mark of the older half left out, if there are too many; the very first one stays."""
        count = len(self.calls)
        if count <= _MOST_MARKS:
            return self
        kept = [place for place in range(count) if place % 2 == 0 or place >= count // 2]
        return Known(
            array("I", [self.counts[place] for place in kept]),
            b"".join(self.digests[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES] for place in kept),
            tuple(self.calls[place] for place in kept),
        )


_UNKNOWN = Known()


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The marks of one rollout's calls, each sequence by its name."""

    sequences: Mapping[str, Known] = field(default_factory=dict)

    def of(self, sequence: str) -> Known:
        """The marks of a sequence; none if it never occurred."""
        return self.sequences.get(sequence, _UNKNOWN)

    def after(self, call_id: str, marks: NewMarks) -> Prefixes:
        """With a call's marks added; only for a call that is on record."""
        sequences = dict(self.sequences)
        for name, new in marks.items():
            if new and (name in sequences or len(sequences) < _MOST_SEQUENCES):
                sequences[name] = self.of(name).after(call_id, new)
        return Prefixes(sequences)

    @property
    def size_bytes(self) -> int:
        """About what this takes in memory."""
        calls = {call for known in self.sequences.values() for call in known.calls}
        marks = sum(len(known.calls) for known in self.sequences.values())
        return len(self.sequences) * _SEQUENCE_BYTES + marks * _MARK_BYTES + len(calls) * _CALL_BYTES


NOTHING = Prefixes()
"""Those of a rollout without calls."""


class Comparison:
    """One sequence of a new call, compared with those of earlier calls while it is read once from start to end."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._hash = sha256()
        self._read = 0
        self.call: str | None = None
        """The call with which it shares the longest prefix."""
        self.shared = 0
        """The elements of that."""
        self.marks: list[Mark] = []
        """Prefixes that no earlier call has."""

    def read(self, between: Between, marked: Sequence[int]) -> None:
        """Go on to the last of the lengths in `marked`, which ascend, and mark the prefix of each."""
        known, start, end = self._known, self._read, marked[-1]
        places = sorted({*marked, *known.counts}) if known.calls else marked
        for place in places:
            if not start < place <= end:
                continue
            self._hash.update(between(start, place))
            start = place
            digest = self._hash.digest()[:_DIGEST_BYTES]
            call = known.call_with(place, digest)
            if call is not None:
                self.call, self.shared = call, place
            elif place in marked:
                self.marks.append((place, digest))
        self._read = end
