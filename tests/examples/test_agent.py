"""The agent with two tries: what it asks, what it reports, and that it needs only its environment variables."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from examples.two_tries.agent import solve
from examples.two_tries.tasks import chain_sums

ROOT = Path(__file__).parents[2]
TASK = {**chain_sums(train=1, held_out=1, seed=1).train[0], "answer": "7"}


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["7"], 1.0),
        (["8", "7"], 0.5),
        (["8", "9"], 0.0),
        (["it is 7", "8"], 1 / 7),
        (["it is 7", "it is 7"], 1 / 7),
    ],
)
def test_the_reward_is_the_better_of_the_first_score_and_half_the_second(answers, reward):
    left = list(answers)
    asked = []

    def ask(messages):
        asked.append([dict(message) for message in messages])
        return left.pop(0)

    assert solve(TASK, ask) == pytest.approx(reward)
    assert left == []
    assert [message["role"] for message in asked[0]] == ["system", "user"]
    if len(asked) == 2:  # the second question begins with the first conversation, so that the calls merge
        assert asked[1][:2] == asked[0]
        assert [message["role"] for message in asked[1][2:]] == ["assistant", "user"]
        assert asked[1][2]["content"] == answers[0]


class Provider(ThreadingHTTPServer):
    """A model provider that answers from a list, fails as often as told, and takes rewards."""

    def __init__(self, answers: list[str], failures: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.failures = answers, failures
        self.rewards: list[tuple[str, dict]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Provider  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.failures:
            self.server.failures -= 1
            self._answer(503, {"detail": "not now"})
        elif self.path.endswith("/events"):
            self.server.rewards.append((self.headers["authorization"], body))
            self._answer(200, body)
        else:
            message = {"role": "assistant", "content": self.server.answers.pop(0)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._answer(
                200,
                {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]},
            )

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: dict) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider(["8", "7"], failures=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def run_agent(provider: Provider, *, with_reward: bool = True) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{provider.server_port}"
    environment = {
        "PATH": os.environ["PATH"],
        "TASK": json.dumps(TASK),
        "OPENAI_BASE_URL": f"{url}/openai/v1",
        "OPENAI_API_KEY": "model-key",
    }
    if with_reward:
        environment |= {"AGL_EVENT_URL": f"{url}/events", "AGL_KEY": "event-key"}
    command = [sys.executable, "-m", "examples.two_tries.agent"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("failures", [0, 1])
def test_the_process_reports_its_reward_even_if_a_request_fails_once(provider, failures):
    provider.failures = failures
    ended = run_agent(provider)

    assert ended.returncode == 0, ended.stderr
    assert provider.rewards == [("Bearer event-key", {"event_type": "reward", "data": {"value": 0.5}})]


def test_without_an_event_url_it_prints_the_reward(provider):
    ended = run_agent(provider, with_reward=False)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().endswith("reward 0.500")
    assert provider.rewards == []
