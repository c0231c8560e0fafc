"""Putting what a call gave on record, in as few bytes as the payloads' version allows.

Invariants:
- a payload refers only to calls that the log has on record in the same stream, which it checks; where it has lost one,
  the call is recorded whole;
- an event that would block the event loop for more than a millisecond is encoded in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from leyden.log.encoding import LINEAR, EncodedCall, encode, encode_call
from leyden.log.errors import BaseMissing
from leyden.log.prefixes import NOTHING, Prefixes
from leyden.schemas import Model
from leyden_gateway.proxy.logged import LoggedCall
from leyden_gateway.proxy.prefixes import Creation, RecordedPrefixes
from leyden_gateway.settings import GatewaySettings

JSON = dict[str, Any]

_log = structlog.get_logger("leyden.gateway.recorder")

_THREAD_ABOVE_BYTES = 400_000


class Recorder:
    """Closes calls, and remembers what later ones may share with them."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._version = settings.payload_version
        self._timeout_seconds = settings.close_timeout_seconds
        self._prefixes = RecordedPrefixes(settings.prefix_memory_bytes)

    async def record(
        self,
        call: LoggedCall,
        rollout: Creation,
        data: JSON,
        *,
        server: Model,
        tokens: int | None,
        read_bytes: int,
    ) -> None:
        """Put an open call on record; `data` were made of JSON that took about `read_bytes`.

        `server` is who answered, `tokens` what the call takes from its attempt's budget, None if nothing.

        Raises:
            What `LoggedCall.close` does, but for BaseMissing.
        """
        call_id, large = call.call_id, read_bytes > _THREAD_ABOVE_BYTES
        encoded = await self._encoded(data, self._prefixes.of(rollout), large=large)
        try:
            await call.close(encoded.payload, self._timeout_seconds, encoded.bases, server=server, tokens=tokens)
        except BaseMissing as error:
            _log.warning("recording a call whole", rollout_id=rollout.rollout_id, call_id=call_id, reason=str(error))
            self._prefixes.forget(rollout)
            encoded = await self._encoded(data, NOTHING, large=large)
            await call.close(encoded.payload, self._timeout_seconds, server=server, tokens=tokens)
        self._prefixes.add(rollout, call_id, encoded.marks)

    async def _encoded(self, data: JSON, earlier: Prefixes, *, large: bool) -> EncodedCall:
        write = _linear if self._version == LINEAR else _whole
        return await asyncio.to_thread(write, data, earlier) if large else write(data, earlier)


def _linear(data: JSON, earlier: Prefixes) -> EncodedCall:
    # Requests and answers were read by orjson, and what is added to them is as plain.
    return encode_call(data, earlier, parsed=True)


def _whole(data: JSON, earlier: Prefixes) -> EncodedCall:
    return EncodedCall(encode(data))
