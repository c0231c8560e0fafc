"""The stub model server says what vLLM would say: everything measured stands on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from bench import answers
from bench.answers import Sizes
from bench.processes import running

from leyden.processes import free_port

_SIZES = Sizes(prompt_tokens=40, answer_tokens=7)
_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    port = free_port()
    command = [sys.executable, "-m", "bench.stub_server", "--port", str(port), "--answers", "2"]
    sizes = ["--prompt-tokens", str(_SIZES.prompt_tokens), "--answer-tokens", str(_SIZES.answer_tokens)]
    with (
        running("stub", [*command, *sizes], tmp_path_factory.mktemp("stub"), port=port, cwd=_REPOSITORY),
        httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False) as client,
    ):
        yield client


def _whole(stub: httpx.Client) -> dict:
    asked = answers.with_token_ids(answers.request(_SIZES))
    return stub.post("/chat/completions", content=answers.dumps(asked)).raise_for_status().json()


def test_answers_cycle_and_are_the_ones_that_can_be_foretold(stub):
    seen = [_whole(stub) for _ in range(4)]
    assert sorted(seen[:2], key=lambda body: body["id"]) == [answers.answer(_SIZES, 0), answers.answer(_SIZES, 1)]
    assert seen[2:] == seen[:2]


def test_ids_and_log_probs_come_only_when_asked_for(stub):
    plain = stub.post("/chat/completions", content=answers.dumps(answers.request(_SIZES))).json()
    assert plain["prompt_token_ids"] is None
    assert plain["choices"][0]["token_ids"] is plain["choices"][0]["logprobs"] is None


def test_a_stream_holds_the_prompt_once_and_each_sampled_token_in_order(stub):
    asked = answers.with_token_ids(answers.request(_SIZES, stream=True))
    with stub.stream("POST", "/chat/completions", content=answers.dumps(asked)) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    chunks = [orjson.loads(line) for line in lines[:-1]]
    whole = next(
        whole for whole in (answers.answer(_SIZES, seed) for seed in range(2)) if whole["id"] == chunks[0]["id"]
    )
    assert lines[-1] == "[DONE]"
    assert [chunk.get("prompt_token_ids") for chunk in chunks if "prompt_token_ids" in chunk] == [
        whole["prompt_token_ids"]
    ]
    assert [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", [])] == (
        whole["choices"][0]["token_ids"]
    )
    assert chunks[-1]["usage"] == whole["usage"]


def test_calls_are_counted(stub):
    count = httpx.URL(str(stub.base_url)).copy_with(path="/count")
    before = stub.get(count).json()["asked"]
    _whole(stub)
    assert stub.get(count).json()["asked"] == before + 1
