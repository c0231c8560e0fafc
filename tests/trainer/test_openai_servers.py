"""Weights brought to servers, over real HTTP."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leyden_trainer.engines import EngineError
from leyden_trainer.engines.openai_servers import OpenAIServers, prepare_directory

RELOAD = ["/pause?mode=wait", "/collective_rpc", "/reset_prefix_cache", "/resume"]


class Server:
    """Answers vLLM's development endpoints with 200, or as `answers` says for a path."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[dict] = []
        self.answers: dict[str, tuple[int, str]] = {}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                server.asked.append(self.path)
                server.bodies.append(json.loads(body or b"{}"))
                status, text = server.answers.get(self.path.split("?")[0], (200, '{"success": true}'))
                if status == 0:
                    server.silence.wait(10)
                    return
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.silence = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.silence.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Callable[[], Server]]:
    started: list[Server] = []

    def start() -> Server:
        started.append(Server())
        return started[-1]

    yield start
    for each in started:
        each.close()


def engines(*servers: Server, written: list[int] | None = None, timeout_seconds: float = 5) -> OpenAIServers:
    def write(step: int) -> dict[str, float]:
        if written is not None:
            written.append(step)
        return {"weights/write_seconds": 0.5}

    return OpenAIServers([each.url for each in servers], write, "/served/model", timeout_seconds)


def test_every_server_pauses_reloads_drops_its_cache_and_resumes(server):
    first, second, written = server(), server(), []

    timings = engines(first, second, written=written).load(7)

    assert written == [7]
    for each in (first, second):
        assert each.asked == RELOAD
        assert each.bodies[1] == {"method": "reload_weights", "kwargs": {"weights_path": "/served/model"}}
    assert timings["weights/write_seconds"] == 0.5
    assert timings["weights/reload_seconds"] > 0


def test_endpoints_have_their_version_whether_or_not_the_url_does():
    servers = OpenAIServers(["http://a:1/", "http://b:2/v1"], lambda step: {}, "/served", 1)

    assert servers.endpoints() == ["http://a:1/v1", "http://b:2/v1"]


def test_a_cache_that_could_not_be_dropped_is_an_error_and_the_server_stays_paused(server):
    busy = server()
    busy.answers["/reset_prefix_cache"] = (200, '{"success": false}')

    with pytest.raises(EngineError, match="requests that do not come through the gateway are running there"):
        engines(busy).load(1)

    assert "/resume" not in busy.asked


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"])
def test_a_refusal_names_the_server_the_request_and_the_answer(server, path: str):
    broken, fine = server(), server()
    broken.answers[path] = (500, "out of memory")

    with pytest.raises(EngineError, match=f"{broken.url}{path} answered 500: out of memory"):
        engines(broken, fine).load(1)

    assert fine.asked == RELOAD


def test_a_load_that_failed_may_be_repeated(server):
    shaky = server()
    shaky.answers["/collective_rpc"] = (503, "loading")
    servers = engines(shaky)
    with pytest.raises(EngineError):
        servers.load(1)

    del shaky.answers["/collective_rpc"]
    servers.load(1)

    assert shaky.asked[-4:] == RELOAD


def test_a_server_without_development_mode_says_what_to_do(server):
    plain = server()
    plain.answers["/pause"] = (404, "")

    with pytest.raises(EngineError, match="start vLLM with VLLM_SERVER_DEV_MODE=1"):
        engines(plain).load(1)


def test_a_silent_server_is_given_up(server):
    silent = server()
    silent.answers["/collective_rpc"] = (0, "")

    with pytest.raises(EngineError, match=r"collective_rpc did not answer within 0\.2 s"):
        engines(silent, timeout_seconds=0.2).load(1)


def test_a_server_that_is_away_is_named(server):
    gone = server()
    gone.close()

    with pytest.raises(EngineError, match=f"{gone.url}/pause can't be reached"):
        engines(gone).load(1)


def test_all_servers_that_failed_are_named(server):
    first, second = server(), server()
    first.answers["/pause"] = second.answers["/pause"] = (500, "no")

    with pytest.raises(EngineError) as failed:
        engines(first, second).load(1)

    assert first.url in str(failed.value)
    assert second.url in str(failed.value)


def test_the_served_directory_gets_all_of_a_model_but_its_weights(tmp_path: Path):
    model, served = tmp_path / "model", tmp_path / "served"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"):
        (model / name).write_text(name)

    prepare_directory(served, model)

    assert sorted(file.name for file in served.iterdir()) == ["config.json", "tokenizer.json"]


def test_a_served_directory_that_is_a_model_stays_as_it_is(tmp_path: Path):
    model, served = tmp_path / "model", tmp_path / "served"
    for folder in (model, served):
        folder.mkdir()
        (folder / "config.json").write_text(folder.name)
    (served / "model.safetensors").write_text("trained")

    prepare_directory(served, model)

    assert (served / "config.json").read_text() == "served"
    assert (served / "model.safetensors").read_text() == "trained"
