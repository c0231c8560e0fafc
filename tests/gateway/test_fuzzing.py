"""The API against requests made from its own description, valid and invalid: no 500, and no answer untold.

Model calls are described by their providers: the bodies come from the official clients' types.

LEYDEN_TEST_FUZZ_REQUESTS says how many requests are made in all.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from anthropic.types import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter
from schemathesis import APIOperation, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from leyden.log import RunSettings
from leyden_gateway.app import create_app
from leyden_gateway.settings import GatewaySettings
from tests.gateway import stub
from tests.gateway.conftest import ADMIN, KEY, serving
from tests.gateway.stub import MODEL, StubModel

REQUESTS = int(os.environ.get("LEYDEN_TEST_FUZZ_REQUESTS", "1000"))

pytestmark = pytest.mark.timeout(900)

_BODIES: dict[str, Any] = {
    "openai/v1/chat/completions": ChatParams,
    "openai/v1/completions": CompletionParams,
    "openai/v1/responses": ResponseCreateParamsNonStreaming,
    "anthropic/v1/messages": MessageCreateParamsNonStreaming,
    "anthropic/v1/messages/count_tokens": MessageCountTokensParams,
}
_NAMES = {"rollout_id": "r1", "attempt": "0", "mode": "train", "run": "default", "response_id": "resp_1"}
"""What paths name where chance would name nothing that exists."""


def _described() -> dict[str, Any]:
    """The gateway's document, with the official bodies of model calls, and names that exist."""
    document = create_app(GatewaySettings(redis_url="redis://127.0.0.1:1/0")).openapi()
    del document["security"], document["components"]["securitySchemes"]  # whoever asks here has the key
    shared = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        official = _BODIES.get(path.partition("/mode/{mode}/")[2])
        if official is not None:
            name = path.rpartition("/v1/")[2].replace("/", "_")
            body = TypeAdapter(official).json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
            shared |= {f"{name}.{model}": schema for model, schema in body.pop("$defs", {}).items()}
            body["properties"]["stream"] = {"type": "boolean"}
            operations["post"]["requestBody"]["content"]["application/json"]["schema"] = body
    return document


def _operations() -> Iterator[APIOperation]:
    for found in schemathesis.openapi.from_dict(_described()).get_all_operations():
        assert isinstance(found, Ok), found
        yield found.ok()


OPERATIONS = list(_operations())
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


async def _steady(body: Any, request: Any) -> Any:
    """Answer well, whatever was asked."""
    stream = body.get("stream") is True
    asked = {"messages": [], "prompt": "", "logprobs": True, "return_token_ids": True, "stream": stream}
    return await stub.answer()(asked, request)


@pytest.fixture(scope="module")
def fuzzed(redis_server: str) -> Iterator[requests.Session]:
    """A client of a gateway with a model server behind it; these run on a loop of their own."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    session = _Session()
    chosen = GatewaySettings(
        redis_url=redis_server,
        key=KEY,  # pyright: ignore[reportArgumentType]
        model=MODEL,
        max_body_bytes=1 << 20,
    )

    async def serve() -> None:
        async with StubModel() as model, serving(chosen) as url:
            model.otherwise = _steady
            session.url, session.model = url, model.url
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    with session:
        yield session
    loop.call_soon_threadsafe(over.set)
    thread.join(30)
    loop.close()


class _Session(requests.Session):
    """A connection with the admin key, and where it and the model server lead."""

    def __init__(self) -> None:
        super().__init__()
        self.headers.update(ADMIN)
        self.url = self.model = ""

    def ask(self, method: str, path: str, body: Any = None) -> None:
        answer = self.request(method, f"{self.url}{path}", json=body, timeout=30)
        answer.raise_for_status()

    def begin(self) -> None:
        """Put things in the state in which most requests mean something."""
        self.ask("POST", "/proxy/resume")
        for run in ("default", "other"):
            self.ask("PUT", f"/api/runs/{run}", RunSettings(model=MODEL).model_dump(mode="json"))
            self.ask("DELETE", f"/api/runs/{run}/models")
            self.ask("POST", f"/api/runs/{run}/models", [{"model": MODEL, "endpoint": self.model}])
        self.ask("DELETE", "/api/rollouts/r1")
        self.ask("POST", "/api/rollouts", [{"rollout_id": "r1", "input": 1}])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label.rpartition("/mode/{mode}/")[2])
def test_every_answer_to_any_request_is_one_that_the_description_tells_of(fuzzed, operation):
    fuzzed.begin()
    known = {parameter.name: _NAMES[parameter.name] for parameter in operation.path_parameters}
    namings: list[dict[str, Any]] = [{"path_parameters": known}, {}] if known else [{}]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    requests_made = st.one_of([operation.as_strategy(mode, **naming) for mode in modes for naming in namings])

    @settings(
        max_examples=max(1, REQUESTS // len(OPERATIONS)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        database=None,
        derandomize=True,
    )
    @given(case=requests_made)
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(base_url=fuzzed.url, session=fuzzed, timeout=30)
        assert answer.status_code != 500
        case.validate_response(answer, checks=CHECKS)

    ask()
