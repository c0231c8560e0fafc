"""Server-sent events, as bytes: taking them apart and putting them together.

Invariants:
- what was fed in is given back event by event, however the bytes were cut on the way;
- lines end with LF or CRLF, as every model server sends them; a lone CR is an ordinary character;
- a byte order mark before the first line is no part of it;
- comments and fields other than `data` are dropped: no model server that is asked from here puts meaning in them.
"""

from __future__ import annotations

DONE = b"[DONE]"
END = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""Characters that JSON may hold as they are, and at which clients that read text line by line end one."""


def event(payload: bytes, name: bytes = b"") -> bytes:
    """One event, named or not, that carries `payload`: JSON without line breaks between its tokens."""
    named = b"event: " + name + b"\n" if name else b""
    if not payload.isascii():
        for character, escape in _LINE_ENDS:
            payload = payload.replace(character, escape)
    return named + b"data: " + payload + b"\n\n"


class Events:
    """Collects bytes and gives back the payloads of the events that are complete."""

    def __init__(self, max_event_bytes: int = 1 << 26) -> None:
        self._parts: list[bytes] = []
        """What has come of the event that is not complete; lines end with LF."""
        self._size_bytes = 0
        self._held = b""
        """A CR at the end of what has come: half of a line's end, maybe."""
        self._start: bytes | None = b""
        """What has come as long as it may be a byte order mark; None from then on."""
        self._max_event_bytes = max_event_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of all events that `data` completes, in order. No byte is looked at more than a few times.

        Raises:
            ValueError: an event has grown past `max_event_bytes` and still has no end.
        """
        if self._start is not None:
            data = self._start + data
            if len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data):
                self._start = data
                return []
            self._start = None
            data = data.removeprefix(_BYTE_ORDER_MARK)
        if self._held:
            data, self._held = self._held + data, b""
        if b"\r" in data:
            if data.endswith(b"\r"):
                data, self._held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n")
        parts, complete = self._parts, []
        goes_on = bool(parts) and parts[-1].endswith(b"\n") and data.startswith(b"\n")
        if goes_on or b"\n\n" in data:
            *complete, data = (b"".join([*parts, data]) if parts else data).split(b"\n\n")
            parts.clear()
            self._size_bytes = 0
        if data:
            parts.append(data)
            self._size_bytes += len(data)
            if self._size_bytes > self._max_event_bytes:
                raise ValueError(f"an event of more than {self._max_event_bytes} bytes has no end")
        return [payload for block in complete if (payload := _payload(block)) is not None]

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an event without its end are left."""
        return any(map(bytes.strip, self._parts))


def _payload(block: bytes) -> bytes | None:
    """The data of one event, or None for an event without data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[6:] if block[5:6] == b" " else block[5:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
