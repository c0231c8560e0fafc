"""How many tokens a prompt has, by the tokenizer of the model's own server; no model call, and not recorded."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.schemas import Model
from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import NoServers
from leyden_gateway.protocols.anthropic.chat_request import tokenizer_body
from leyden_gateway.protocols.anthropic.errors import error_body, refusal_body
from leyden_gateway.protocols.anthropic.request import read_prompt
from leyden_gateway.proxy import endpoints
from leyden_gateway.proxy.client import Client
from leyden_gateway.proxy.connections import Connection, UpstreamFailed, UpstreamSilent
from leyden_gateway.proxy.upstream import parsed

JSON = dict[str, Any]

_PATH = "tokenize"
_NONE = frozenset({404, 405, 501})


async def count_tokens(gateway: Gateway, client: Client, rollout_id: str, asked: JSON) -> None:
    """Answer with the number of tokens of a Messages prompt, as its call would count them.

    Servers are asked in turn until one answers; one without a tokenizer is 404, as an address that there is not.

    Raises:
        AgentError: it is no such prompt.
        NoServers: the model has no server.
        ClientGone, RolloutMissing, RunMissing, LogUnavailable
    """
    location = await gateway.locations.locate(rollout_id)
    view = await gateway.views.recent(location.run)
    prompt = read_prompt(asked)
    name = view.upstream_model(prompt.model)
    servers = view.serving(name)
    if not servers:
        raise NoServers(name)
    payload = orjson.dumps(tokenizer_body(prompt) | {"model": name})
    status, response = 502, {}
    preferred = endpoints.ranked(servers, rollout_id)
    best = gateway.health.best(preferred)
    for server in [best, *(each for each in preferred if each is not best)]:
        status, response = await _ask(gateway, client, server, payload)
        if status < 500:
            break
    count = response.get("count")
    if status == 200 and type(count) is int:
        await client.respond(200, orjson.dumps({"input_tokens": count}))
    elif status in _NONE:
        message = f"the servers of {name} have no tokenizer to count with: they answer {status} at /{_PATH}"
        await client.respond(404, orjson.dumps(error_body(404, message)))
    elif status < 400:
        message = f"the tokenizer of {name} gave no count: {str(response)[:200]}"
        await client.respond(502, orjson.dumps(error_body(502, message)))
    else:
        await client.respond(status, orjson.dumps(refusal_body(status, response)))


async def _ask(gateway: Gateway, client: Client, server: Model, payload: bytes) -> tuple[int, JSON]:
    """A server's status and answer; an error in its place if there is none."""
    # The tokenizer is vLLM's own and stands beside the `/v1` of what it has of OpenAI's.
    root = server.model_copy(update={"endpoint": server.endpoint.rstrip("/").removesuffix("/v1")})
    timeout_seconds = gateway.settings.upstream_timeout_seconds
    try:
        async with client.patience(timeout_seconds, grace_seconds=0):
            reply = await gateway.upstream.post(root, _PATH, payload)
            try:
                return reply.status, await _read(gateway, reply)
            finally:
                gateway.upstream.release(reply)
    except UpstreamFailed as failed:
        return failed.status, {"error": {"message": str(failed)}}
    except ValueError as large:
        return UpstreamFailed.status, {"error": {"message": str(large)}}
    except TimeoutError:
        return UpstreamSilent.status, {
            "error": {"message": f"{server.shown_endpoint}: no answer in {timeout_seconds:g} s"}
        }


async def _read(gateway: Gateway, reply: Connection) -> JSON:
    response, fault = parsed(await gateway.upstream.read(reply), "", reply.encoding)
    return {"error": {"message": fault}} if fault else response
