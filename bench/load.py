"""Puts load on a server with wrk: one thread, a closed loop of N connections, one body, many paths in turn.

wrk is Debian's (`apt-get install wrk`); it costs about 10 µs a call, so that a server on the same two cores is
measured and not the client. When time is up it drops the calls in flight, at most one a connection, and does not
count them.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("load.lua")


class LoadFailed(RuntimeError):
    """wrk is missing or failed, or calls were not answered with 2xx."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where one rollout's calls go."""

    path: str
    credential: str


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of wrk saw. Latencies are from the request's first byte to the answer's last."""

    calls: int
    seconds: float
    median_ms: float
    p99_ms: float
    max_ms: float

    @property
    def calls_per_second(self) -> float:
        return self.calls / self.seconds


def put_load(
    base_url: str, targets: Sequence[Target], body: bytes, folder: Path, *, connections: int, seconds: int
) -> Load:
    """Call `targets` in turn over `connections` connections for `seconds`.

    Raises:
        LoadFailed: also if a single call got anything but 2xx, since such calls are cheaper than real ones.
    """
    wrk = shutil.which("wrk")
    if wrk is None:
        raise LoadFailed("wrk is not on PATH: apt-get install wrk")
    target_file, body_file = folder / "targets.tsv", folder / "body.json"
    target_file.write_text("".join(f"{target.path}\t{target.credential}\n" for target in targets))
    body_file.write_bytes(body)
    command = [wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(_SCRIPT), base_url, "--"]
    ended = subprocess.run([*command, target_file, body_file], capture_output=True, text=True, timeout=seconds + 90)
    results = [line.removeprefix("RESULT ") for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    if ended.returncode or not results:
        raise LoadFailed(f"wrk on {base_url} ended with {ended.returncode}: {ended.stdout} {ended.stderr}")
    seen = json.loads(results[0])
    refused, broken = seen.pop("refused"), seen.pop("broken")
    if refused or broken:
        raise LoadFailed(
            f"{base_url}{targets[0].path}: of {seen['calls']} calls {refused} were refused and {broken} broke off"
        )
    return Load(**seen)
