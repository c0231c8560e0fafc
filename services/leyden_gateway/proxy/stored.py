"""Answers that are asked for again by their id.

Invariant: an agent reads answers of its own attempt alone.
"""

from __future__ import annotations

import orjson

from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import NoSuchRoute
from leyden_gateway.protocols.responses.protocol import is_response, recorded_response
from leyden_gateway.proxy.client import Client
from leyden_gateway.proxy.recall import recall


async def give_response(gateway: Gateway, client: Client, rollout_id: str, attempt: str, response_id: str) -> None:
    """Answer with a Response as the record gives it; no call, and not recorded.

    Raises:
        NoSuchRoute: the attempt has none of this id.
        RolloutMissing: there is no such rollout.
    """
    location = await gateway.log.locate(rollout_id)
    run = gateway.log.run(location.run)
    call = await recall(run, rollout_id, attempt, lambda data: is_response(data, response_id))
    if call is None:
        raise NoSuchRoute(f"Response with id '{response_id[:200]}' not found.")
    await client.respond(200, orjson.dumps(recorded_response(call)))
