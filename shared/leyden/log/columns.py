"""Token ids, log probs and tokens of an answer as columns, apart from the JSON around them.

Invariants:
- what comes back is what was there, in type and value: a list of anything but 32-bit integers or finite floats is left
  where it is;
- the data given is never changed, and copied only along the way to a column.
"""

from __future__ import annotations

import marshal
import math
import struct
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeGuard

ID_BYTES = 5
_MARSHAL = 2
"""The last version that does not look at which objects are the same."""

BYTES = {"i": 4, "f": 4, "d": 8}
"""What a value of each type of column of numbers takes; each is written by byte planes, which compress better."""

_ENTRY = ["token", "logprob", "bytes", "top_logprobs"]
"""The keys of an entry of `logprobs.content`, in the order in which vLLM writes them."""

_FIELDS = itemgetter("token", "logprob", "bytes", "top_logprobs")

_MAX_TEXT_BYTES = 255

_SHORT = 8
"""Columns shorter than this cost more than they save."""

Path = list[str | int]


class _Texts(NamedTuple):
    """Texts as UTF-8: how many bytes each has, and all of them."""

    lengths: list[int]
    together: bytes


class Columns:
    """The columns of one payload while it is built."""

    def __init__(self, *, tokens_apart: bool = False) -> None:
        """With `tokens_apart` the texts of tokens become columns, too, which version 1 does not have."""
        self.tokens_apart = tokens_apart
        self.places: list[list[Any]] = []
        """For each column its path, type and length, and what it follows if it is shared."""
        self.blobs: list[bytes] = []

    def take(self, path: Path, values: Any) -> bool:
        """Move a list of ids or log probs out of the skeleton; False if it is anything else."""
        ids = id_bytes(values)
        if ids is not None:
            self.add_ids(path, len(values), ids)
            return True
        return self.take_floats(path, values)

    def take_floats(self, path: Path, values: Any) -> bool:
        """Move a list of log probs out of the skeleton; False if it is anything else."""
        column = packed_floats(values)
        if column is None:
            return False
        self.add_floats(path, len(values), *column)
        return True

    def add_floats(self, path: Path, length: int, typecode: str, packed: bytes) -> None:
        """Append a column of log probs."""
        width = BYTES[typecode]
        self.places.append([path, typecode, length])
        self.blobs.extend(packed[place::width] for place in range(width))

    def add_ids(self, path: Path, length: int, ids: bytes, *base: int) -> None:
        """Append a column of ids; `base` says which earlier call's ids it follows, and how many (see `sharing`)."""
        self.places.append([path, "i", length, *base])
        self.blobs.extend(ids[place::ID_BYTES] for place in range(1, ID_BYTES))

    def take_texts(self, path: Path, texts: _Texts) -> bool:
        """Move a list of short texts out of the skeleton."""
        if not self.tokens_apart or len(texts.lengths) < _SHORT:
            return False
        try:
            lengths = bytes(texts.lengths)
        except ValueError:  # one is longer than a byte says
            return False
        self.places.append([path, "t", len(lengths)])
        self.blobs += (lengths, texts.together)
        return True


def without_columns(response: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """A model's answer as it is but for the columns taken out of it; `response` stays as it was."""
    bare = dict(response)
    if columns.take(["response", "prompt_token_ids"], bare.get("prompt_token_ids")):
        bare["prompt_token_ids"] = None
    choices = bare.get("choices")
    if isinstance(choices, list):
        bare["choices"] = [
            _bare_choice(choice, ["response", "choices", place], columns) if isinstance(choice, dict) else choice
            for place, choice in enumerate(choices)
        ]
    return bare


def _bare_choice(choice: dict[str, Any], path: Path, columns: Columns) -> dict[str, Any]:
    bare = dict(choice)
    for name in ("prompt_token_ids", "token_ids"):
        if columns.take([*path, name], bare.get(name)):
            bare[name] = None
    log_probs = bare.get("logprobs")
    if isinstance(log_probs, dict):
        bare["logprobs"] = _bare_log_probs(log_probs, [*path, "logprobs"], columns)
    return bare


def _bare_log_probs(log_probs: dict[str, Any], path: Path, columns: Columns) -> dict[str, Any]:
    bare = dict(log_probs)
    if columns.take([*path, "token_logprobs"], bare.get("token_logprobs")):
        bare["token_logprobs"] = None
    if columns.tokens_apart and columns.take([*path, "text_offset"], bare.get("text_offset")):
        bare["text_offset"] = None
    tokens = bare.get("tokens")
    if columns.tokens_apart and _are_texts(tokens) and columns.take_texts([*path, "tokens"], _texts(tokens)):
        bare["tokens"] = None
    entries = _parts(bare.get("content"))
    if entries is not None and (column := packed_floats(entries.log_probs)) is not None:
        # Tokens are put back before the log probs, which then make entries of them.
        apart = entries.texts is not None and columns.take_texts([*path, "content"], entries.texts)
        bare["content"] = None if apart else entries.tokens
        columns.add_floats([*path, "content", "*"], len(entries.log_probs), *column)
    return bare


def _are_texts(tokens: Any) -> TypeGuard[list[str]]:
    return isinstance(tokens, list) and set(map(type, tokens)) == {str}


def _texts(tokens: list[str]) -> _Texts:
    texts = list(map(str.encode, tokens))
    return _Texts(list(map(len, texts)), b"".join(texts))


class _Entries(NamedTuple):
    """The entries of `logprobs.content` without their log probs, and the log probs.

    What is left of an entry is its token, or `[token, bytes, top_logprobs]` if the bytes are not the token's UTF-8 or
    there are other candidates. `texts` are the tokens' too, None if any token is such.
    """

    tokens: list[Any]
    log_probs: list[Any]
    texts: _Texts | None


def _parts(content: Any) -> _Entries | None:
    """The entries' parts; None if it is anything else."""
    if not isinstance(content, list) or not content:
        return None
    try:
        if list(content[0]) != _ENTRY or set(map(len, content)) != {len(_ENTRY)}:
            return None
        tokens, log_probs, utf8s, tops = map(list, zip(*map(_FIELDS, content), strict=True))
    except (LookupError, TypeError):
        return None
    if (texts := _all_derived(tokens, utf8s, tops)) is not None:
        return _Entries(tokens, log_probs, texts)
    entries = zip(tokens, utf8s, tops, strict=True)
    return _Entries(
        [[token, utf8, top] if _all_derived([token], [utf8], [top]) is None else token for token, utf8, top in entries],
        log_probs,
        None,
    )


def _all_derived(tokens: list[Any], utf8s: list[Any], tops: list[Any]) -> _Texts | None:
    """The tokens' UTF-8, if that is what the bytes are and no token has other candidates."""
    if tops.count([]) != len(tops) or set(map(type, utf8s)) != {list}:
        return None
    try:
        texts = _texts(tokens)
        if bytes(list(chain.from_iterable(utf8s))) != texts.together or list(map(len, utf8s)) != texts.lengths:
            return None
    except (UnicodeEncodeError, TypeError, ValueError):
        return None
    # true and false equal 1 and 0, so tokens with those bytes are kept as they came.
    return None if b"\0" in texts.together or b"\1" in texts.together else texts


def id_bytes(values: Any) -> bytes | None:
    """A list of 32-bit integers as `ID_BYTES` each; None if it is anything else, or short.

    Marshal writes such an integer as a type byte and an int32, in one pass over a list that would otherwise be looked
    through for what is true or 1.0, and then packed.
    """
    if not isinstance(values, list) or len(values) < _SHORT:
        return None
    try:
        written = marshal.dumps(values, _MARSHAL)[5:]
    except ValueError:
        return None
    return written if written[::ID_BYTES] == b"i" * len(values) and len(written) == ID_BYTES * len(values) else None


def packed_floats(values: Any) -> tuple[str, bytes] | None:
    """The type and bytes of a column of finite floats; None if `values` is anything else, or short."""
    # struct takes 1 for 1.0, which would not come back as it was.
    if not isinstance(values, list) or len(values) < _SHORT or set(map(type, values)) != {float}:
        return None
    if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
        return None
    layout = f"<{len(values)}f"
    try:
        short = struct.pack(layout, *values)
        if list(struct.unpack(layout, short)) == values:
            return "f", short
    except OverflowError:
        pass
    return "d", struct.pack(f"<{len(values)}d", *values)
