"""What the numbers were measured on."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_PACKAGES = ("hiredis", "httptools", "orjson", "redis", "uvicorn", "uvloop", "zstandard")


@dataclass(frozen=True, slots=True)
class Machine:
    """A description for the tables; `load` is the 1-minute average when it was made."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    redis: str
    packages: dict[str, str]
    load: float

    @classmethod
    def here(cls, redis_server: str) -> "Machine":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            cpu=_cpu(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(memory / 2**30, 1),
            kernel=platform.release(),
            python=platform.python_version(),
            redis=subprocess.run(
                [redis_server, "--version"], capture_output=True, text=True, check=True
            ).stdout.strip(),
            packages={name: metadata.version(name) for name in _PACKAGES},
            load=round(os.getloadavg()[0], 2),
        )

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, Linux {self.kernel}, Python {self.python}\n"
            f"{self.redis}\n{packages}\nload at the start {self.load}"
        )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
