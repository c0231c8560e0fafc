"""vLLM on the CPU, from an environment of its own: `python -m examples.serve_vllm MODEL_FOLDER`.

It serves a model so that a trainer can train on its samples and replace its weights: log probabilities are those of the
distribution that was sampled from, and development mode has the endpoints that reload weights.

Invariants:
- the server ends with the process that started it, however that ends;
- a server that does not come up is an error that shows the last lines of its log.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from leyden.processes import end, own_group_until_parent_dies

DEFAULT_PYTHON = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
START_SECONDS = 300.0
_KEPT = Path(__file__).with_name("kept.py")
_STOP_SECONDS = 30.0
_KILL_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_LAST_LINES = 25

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_FLAGS = (
    # Without it the model's own generation_config.json changes how is sampled.
    ("--generation-config", "vllm"),
    ("--logprobs-mode", "processed_logprobs"),
    # What trains is float32, and bfloat16 is slower where the CPU has no instructions for it.
    ("--dtype", "float32"),
    # The smallest that attention on the CPU takes: prompts share their cache by whole blocks.
    ("--block-size", "32"),
    ("--distributed-executor-backend", "uni"),
    ("--enforce-eager",),
    ("--enable-auto-tool-choice",),
    ("--tool-call-parser", "hermes"),
)


class ServerFailed(RuntimeError):
    """The server did not come up; the message ends with the last lines of its log."""


@dataclass
class VllmServer:
    """One server as a child process, running inside `with`; its output is appended to `log`.

    `threads` is how many cores a step of the model computes on: a tiny model is slowed down by more than one.
    """

    model: Path
    name: str
    port: int
    log: Path
    threads: int = 2
    max_model_len: int = 512
    max_num_seqs: int = 32
    kv_cache: str = "512M"
    host: str = "127.0.0.1"
    python: Path = DEFAULT_PYTHON
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers, without `/v1`."""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, without waiting for it.

        Raises:
            ServerFailed: there is no vLLM to start.
        """
        if not self.python.exists():
            raise ServerFailed(f"{self.python} does not exist: `make vllm-env` installs vLLM for the CPU")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(_KEPT), str(_STOP_SECONDS), *self.command()],
                env=os.environ | _ENVIRONMENT | {"OMP_NUM_THREADS": str(self.threads)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=own_group_until_parent_dies,
            )

    def command(self) -> list[str]:
        """vLLM's command line."""
        given = (
            ("--model", str(self.model)),
            ("--served-model-name", self.name),
            ("--host", self.host),
            ("--port", str(self.port)),
            ("--max-model-len", str(self.max_model_len)),
            ("--max-num-seqs", str(self.max_num_seqs)),
            ("--kv-cache-memory-bytes", self.kv_cache),
        )
        # Not the `vllm` command: it asks for the metadata of a package that the CPU build does not bring.
        module = [str(self.python), "-m", "vllm.entrypoints.openai.api_server"]
        return module + [word for flag in given + _FLAGS for word in flag]

    def wait_until_ready(self, timeout_seconds: float = START_SECONDS) -> None:
        """Return when the server answers.

        Raises:
            ServerFailed: it ended, or did not answer in time.
        """
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise ServerFailed(self._last_words(f"vLLM ended with code {code} while it was starting"))
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_LOOK_SECONDS)
        raise ServerFailed(self._last_words(f"vLLM did not answer at {self.url} within {timeout_seconds:g} s"))

    def wait(self) -> int:
        """Return the exit code when the process has ended."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """End the process and those that it started."""
        if self._process is None:
            return
        end(self._process, _STOP_SECONDS + _KILL_SECONDS)
        self._process = None

    def _last_words(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"{what}; its log, {self.log}, ends with:", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve a model with vLLM on the CPU.")
    parser.add_argument("model", type=Path, help="a Hugging Face folder")
    parser.add_argument("--name", help="what clients call the model; by default, the folder's name")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--log", type=Path, default=Path(".leyden/vllm.log"))
    asked = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = VllmServer(asked.model, asked.name or asked.model.name, asked.port, asked.log, asked.threads)
    try:
        with server:
            sys.stdout.write(f"vLLM serves {server.name} at {server.url}/v1, its log is {server.log}\n")
            sys.stdout.flush()
            return server.wait()
    except ServerFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
