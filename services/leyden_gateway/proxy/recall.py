"""Finding an earlier call of an attempt, on whichever replica it was made."""

from __future__ import annotations

from leyden.log import RunLog
from leyden.triplet import MODEL_REQUEST
from leyden_gateway.protocols.openai import finish_reasons
from leyden_gateway.protocols.protocol import JSON, Wanted

_FIRST_PAGE, _PAGE = 2, 8
"""Entries read at once; what is looked for is nearly always the last call, and each is large."""


async def recall(run: RunLog, rollout_id: str, attempt: str, wanted: Wanted) -> JSON | None:
    """The data of the attempt's latest answered call that is wanted, or None.

    Raises:
        LogUnavailable
    """
    before, count = "+", _FIRST_PAGE
    while page := await run.events.newest(rollout_id, count, before=before):
        for entry in page:
            if entry.kind == "event" and entry.attempt == attempt and entry.event_type == MODEL_REQUEST:
                data = entry.data or {}
                if data.get("status") == "ok" and wanted(data) and "abort" not in finish_reasons(data["response"]):
                    return data
        before, count = page[-1].entry, _PAGE
    return None
