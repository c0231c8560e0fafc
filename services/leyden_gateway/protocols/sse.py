"""Server-sent events, as bytes: taking them apart and putting them together.

Invariants:
- what was fed in is given back event by event, however the bytes were cut on the way;
- lines end with LF or CRLF, as every model server sends them; a lone CR is an ordinary character;
- comments and fields other than `data` are dropped: no model server that is asked from here puts meaning in them.
"""

from __future__ import annotations

DONE = b"[DONE]"
END = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(payload: bytes, name: bytes = b"") -> bytes:
    """One event, named or not, that carries `payload`, which holds no line break."""
    named = b"event: " + name + b"\n" if name else b""
    return named + b"data: " + payload + b"\n\n"


class Events:
    """Collects bytes and gives back the payloads of the events that are complete."""

    def __init__(self, max_event_bytes: int = 1 << 26) -> None:
        self._rest = b""
        self._max_event_bytes = max_event_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of all events that `data` completes, in order.

        Raises:
            ValueError: an event has grown past `max_event_bytes` and still has no end.
        """
        text = self._rest + data if self._rest else data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *complete, self._rest = text.split(b"\n\n")
        if len(self._rest) > self._max_event_bytes:
            raise ValueError(f"an event of more than {self._max_event_bytes} bytes has no end")
        return [payload for block in complete if (payload := _payload(block)) is not None]

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an event without its end are left."""
        return bool(self._rest.strip())


def _payload(block: bytes) -> bytes | None:
    """The data of one event, or None for an event without data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[6:] if block[5:6] == b" " else block[5:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
