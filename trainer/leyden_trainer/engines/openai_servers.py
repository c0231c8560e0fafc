"""OpenAI servers outside of verl, vLLM's in development mode: weights go through a file, then each server reloads.

Invariants:
- a server that was told to pause is resumed only after it reloaded the weights and dropped its prefix cache, so it
  never samples with a mixture; one that failed stays paused, and the next `load` begins anew;
- every request has a deadline, and its error names the server, the request and the answer.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from leyden_trainer.engines import EngineError

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf")


class OpenAIServers:
    """The servers at `urls`, without `/v1`, that serve the model in `weights_dir`.

    `write_weights(step)` makes the actor write its weights there and returns timings; `served_dir` is that directory's
    path as the servers see it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        write_weights: Callable[[int], dict[str, float]],
        served_dir: str,
        timeout_seconds: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._write_weights = write_weights
        self._served_dir = served_dir
        self._timeout_seconds = timeout_seconds
        self._transport = transport

    def endpoints(self) -> list[str]:
        return [f"{url}/v1" for url in self._urls]

    def load(self, step: int) -> dict[str, float]:
        timings = self._write_weights(step)
        started = time.monotonic()
        with (
            httpx.Client(timeout=self._timeout_seconds, transport=self._transport) as client,
            ThreadPoolExecutor(len(self._urls)) as pool,
        ):
            reloads = [pool.submit(self._reload, client, url) for url in self._urls]
        failures = [str(error) for reload in reloads if (error := reload.exception()) is not None]
        if failures:
            raise EngineError("; ".join(failures))
        return timings | {"weights/reload_seconds": time.monotonic() - started}

    def rest(self) -> None:
        pass

    def _reload(self, client: httpx.Client, url: str) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": self._served_dir}}
        self._ask(client, url, "/pause", params={"mode": "wait"})
        self._ask(client, url, "/collective_rpc", json=reload)
        answer = self._ask(client, url, "/reset_prefix_cache")
        if _said_no(answer):
            raise EngineError(
                f"{url}/reset_prefix_cache answered {answer.text[:500]!r}: requests that do not come through the "
                "gateway are running there, and answers would come from the old weights' cache"
            )
        self._ask(client, url, "/resume")

    def _ask(self, client: httpx.Client, url: str, path: str, **request: Any) -> httpx.Response:
        try:
            answer = client.post(url + path, **request)
        except httpx.TimeoutException as error:
            raise EngineError(f"{url}{path} did not answer within {self._timeout_seconds:g} s") from error
        except httpx.TransportError as error:
            raise EngineError(f"{url}{path} can't be reached: {error!r}") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise EngineError(
                f"{url} has no {path}: start vLLM with VLLM_SERVER_DEV_MODE=1 so that it can reload weights"
            )
        if answer.is_error:
            raise EngineError(f"{url}{path} answered {answer.status_code}: {answer.text[:500]}")
        return answer


def _said_no(answer: httpx.Response) -> bool:
    """Whether a server reports a failure under status 200."""
    try:
        body = answer.json() if answer.content else None
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("success") is False


def prepare_directory(directory: Path, model: Path) -> None:
    """Make `directory` a model directory with the configuration and tokenizer of `model`, unless it is one.

    Weights are not copied: the trainer writes them before anything reads the directory for the first time.
    """
    if (directory / "config.json").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*WEIGHT_PATTERNS))
