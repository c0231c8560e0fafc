"""Finding an earlier call of an attempt, on whichever replica it was made."""

from __future__ import annotations

from leyden.log import RunLog
from leyden.triplet import MODEL_REQUEST
from leyden_gateway.protocols.openai import finish_reasons
from leyden_gateway.protocols.protocol import JSON, Wanted


async def recall(run: RunLog, rollout_id: str, attempt: str, wanted: Wanted) -> JSON | None:
    """The data of the attempt's latest answered call that is wanted, or None.

    Raises:
        LogUnavailable
    """
    async for entry in run.events.backwards(rollout_id):
        if entry.kind == "event" and entry.attempt == attempt and entry.event_type == MODEL_REQUEST:
            data = entry.data or {}
            if data.get("status") == "ok" and wanted(data) and "abort" not in finish_reasons(data["response"]):
                return data
    return None
