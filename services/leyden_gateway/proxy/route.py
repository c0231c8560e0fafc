"""The addresses under which agents call models: `/proxy/rollout/{id}/attempt/{attempt}/mode/{mode}/…`.

A plain ASGI application, since this is the hot path; everything else goes through FastAPI.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson
import structlog
from starlette.types import Receive, Scope, Send

from leyden.auth import Admin, Right
from leyden.log.errors import LogFull, LogUnavailable, RunPaused
from leyden.schemas import is_name
from leyden_gateway import metrics, strict_json
from leyden_gateway.access import Caller, allow
from leyden_gateway.gateway import Gateway
from leyden_gateway.problems import CODES, MethodNotAllowed, NoSuchRoute, problem, reason
from leyden_gateway.protocols import PROTOCOLS, AgentError, ModelProtocol
from leyden_gateway.proxy.call import ModelCall
from leyden_gateway.proxy.client import Client, ClientGone
from leyden_gateway.proxy.count_tokens import count_tokens
from leyden_gateway.proxy.model_list import list_models
from leyden_gateway.proxy.sampling import Mode
from leyden_gateway.proxy.stored import give_response

_log = structlog.get_logger("leyden.gateway.route")

_PREFIX = "/proxy/rollout/"
_ADDRESS = re.compile(r"/proxy/rollout/([^/]+)/attempt/([^/]+)/mode/([^/]+)/(.+)")
_MODELS = re.compile(r"(openai|anthropic)/v1/models(?:/(.+))?")
_RESPONSE = re.compile(r"openai/v1/responses/(resp_[^/]+)")
_COUNT_TOKENS = "anthropic/v1/messages/count_tokens"
_CHAT = PROTOCOLS["openai/v1/chat/completions"]
_MESSAGES = PROTOCOLS["anthropic/v1/messages"]


class Address(NamedTuple):
    """What a model address names; `path` is what follows the mode."""

    rollout_id: str
    attempt: str
    mode: Mode
    path: str


def is_model_address(scope: Scope) -> bool:
    """Whether a request is for `answer`."""
    return scope["type"] == "http" and scope["path"].startswith(_PREFIX)


async def answer(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a model address, as ASGI; whatever goes wrong is answered too."""
    client = Client(scope, receive, send)
    protocol = _provider(scope["path"])
    try:
        caller = gateway.access.caller(client.headers)
        address = _address(scope["path"])
        allow(caller, address.rollout_id, address.attempt, Right.CALL)
        if await _answered_aside(gateway, client, scope["method"], caller, address):
            return
        protocol = _protocol(address.path).for_call()
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], scope["path"])
        await _call(gateway, client, protocol, caller, address)
    except ClientGone:
        metrics.REFUSED.labels("499", "client gone").inc()
    except Exception as error:  # noqa: BLE001  the outermost frame: whatever went wrong, the client is told
        await _refuse(gateway, client, protocol, error)
    finally:
        client.leave()


async def _answered_aside(gateway: Gateway, client: Client, method: str, caller: Caller, address: Address) -> bool:
    """Answer what clients ask beside their calls; False if it is none of that."""
    rollout_id, path = address.rollout_id, address.path
    models, response, counting = _MODELS.fullmatch(path), _RESPONSE.fullmatch(path), path == _COUNT_TOKENS
    if models or response or counting:
        await _admit(gateway, caller, address)
    if method == "GET" and models:
        await list_models(gateway, client, models[1], rollout_id, models[2])
    elif method == "GET" and response:
        await give_response(gateway, client, rollout_id, address.attempt, response[1])
    elif method == "POST" and counting:
        asked = _object(await client.body(gateway.settings.max_body_bytes))
        await count_tokens(gateway, client, rollout_id, asked)
    elif models or response or counting:
        raise MethodNotAllowed(method, path)
    else:
        return False
    return True


async def _admit(gateway: Gateway, caller: Caller, address: Address) -> None:
    """Ask the log what opening a call would: whether the attempt that an agent's key is for still goes on.

    Raises:
        RolloutMissing, RolloutFinished, AttemptFenced
    """
    if isinstance(caller, Admin):
        return
    location = await gateway.log.locate(address.rollout_id)
    await gateway.log.run(location.run).rollouts.admit(address.rollout_id, address.attempt, caller.nonce)


async def _call(gateway: Gateway, client: Client, protocol: ModelProtocol, caller: Caller, address: Address) -> None:
    with gateway.admission.call():
        raw = await client.body(gateway.settings.max_body_bytes)
        await ModelCall(
            gateway,
            client,
            protocol,
            rollout_id=address.rollout_id,
            attempt=address.attempt,
            mode=address.mode,
            nonce=None if isinstance(caller, Admin) else caller.nonce,
            asked=_object(raw),
            raw=raw,
        ).serve()


async def _refuse(gateway: Gateway, client: Client, protocol: ModelProtocol, error: Exception) -> None:
    status, message, headers = problem(error, gateway.settings.retry_after_seconds)
    metrics.REFUSED.labels(str(status), reason(error)).inc()
    if isinstance(error, LogUnavailable | LogFull):
        metrics.LOG_ERRORS.labels(type(error).__name__).inc()
    if status == 500:
        _log.error("model call failed", exc_info=error)
    if client.started:
        if client.streaming:
            await client.stream(protocol.error_event(status, message), last=True)
        return
    if isinstance(error, RunPaused):
        body = protocol.paused(message, error.pause.reason)
    else:
        param, code = (error.param, error.code) if isinstance(error, AgentError) else (None, CODES.get(type(error)))
        body = protocol.problem(status, message, param=param, code=code)
    await client.respond(status, orjson.dumps(body), headers)


def _address(path: str) -> Address:
    """What a path names.

    Raises:
        NoSuchRoute: it is no such address, or names no mode.
        AgentError: its rollout or attempt can't be one.
    """
    match = _ADDRESS.fullmatch(path)
    if match is None:
        raise NoSuchRoute(f"Not Found: {path[:200]}")
    rollout_id, attempt, mode, rest = match.groups()
    if mode not in (Mode.TRAIN, Mode.VAL):
        raise NoSuchRoute(f"Unsupported proxy mode: {mode[:200]}")
    if not is_name(attempt):
        raise AgentError(f"{attempt[:200]!r} is not a valid attempt id")
    return Address(rollout_id, attempt, Mode(mode), rest)


def _provider(path: str) -> ModelProtocol:
    """The protocol in whose shape errors are said to who calls this path, whatever it names."""
    match = _ADDRESS.fullmatch(path)
    return _MESSAGES if match is not None and match[4].startswith("anthropic/") else _CHAT


def _protocol(path: str) -> ModelProtocol:
    protocol = PROTOCOLS.get(path)
    if protocol is None:
        raise NoSuchRoute(f"Unsupported upstream path: {path.removeprefix('openai/v1/')[:200]}")
    return protocol


def _object(raw: bytes) -> dict:
    """The body as an object; an empty one is an empty object.

    Raises:
        AgentError: it is not a JSON object.
    """
    if not raw:
        return {}
    try:
        body = strict_json.loads(raw)
    except strict_json.NotJSON as error:
        raise AgentError(f"Invalid JSON in request body: {error}") from None
    if not isinstance(body, dict):
        raise AgentError(f"Request body must be a JSON object, not {str(body)[:100]!r}")
    return body
