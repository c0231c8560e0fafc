"""docker-compose.yml hands the services settings that they have, confines them, and agrees with what it mounts.

Docker itself is asked where there is one; a whole run of the platform is deploy/smoke/run.sh.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_settings import BaseSettings

from leyden.log import RunSettings
from leyden_controller.settings import ControllerSettings
from leyden_gateway.settings import GatewaySettings

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
DOCUMENTATION = (ROOT / "docs" / "deployment.md").read_text()
KEY = "0123456789abcdef0123456789abcdef"
SETTINGS: dict[str, type[BaseSettings]] = {"gateway": GatewaySettings, "controller": ControllerSettings}

_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """`75s`, `1m15s` or `2h` in seconds."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def interpolated(text: str) -> str:
    """`text` with `${NAME:-default}` and `${NAME:?words}` as compose fills them in when only the key is set."""
    return re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", lambda m: KEY if m[1] == "LEYDEN_KEY" else m[2] or "", text)


def environment(service: str) -> dict[str, str]:
    """What a service is given when only the key is set; a name without a value is passed on only if it is set."""
    given = SERVICES[service]["environment"]
    return {name: interpolated(value) for name, value in given.items() if value is not None}


def docker_compose(*arguments: str, key: str | None) -> subprocess.CompletedProcess[str]:
    """Run `docker compose` over the file, with no settings but the key."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not installed")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LEYDEN_", "COMPOSE_"))}
    return subprocess.run(
        ["docker", "compose", "--env-file", os.devnull, *arguments],
        cwd=ROOT,
        env=clean if key is None else clean | {"LEYDEN_KEY": key},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("service", SETTINGS)
def test_every_variable_that_a_service_is_given_is_a_setting_of_it(service):
    fields = SETTINGS[service].model_fields
    unknown = [name for name in SERVICES[service]["environment"] if name.removeprefix("LEYDEN_").lower() not in fields]
    assert unknown == []


@pytest.mark.parametrize("service", SETTINGS)
def test_services_accept_what_they_are_given_when_only_the_key_is_set(service, monkeypatch):
    for name in [name for name in os.environ if name.startswith(("LEYDEN_", "AGL_"))]:
        monkeypatch.delenv(name)
    for name, value in environment(service).items():
        monkeypatch.setenv(name, value)
    settings = SETTINGS[service]()
    if isinstance(settings, GatewaySettings):
        settings.check()


@pytest.mark.parametrize("service", SETTINGS)
def test_a_service_is_killed_only_after_its_own_grace_is_over(service):
    grace = float(environment(service)["LEYDEN_SHUTDOWN_GRACE_SECONDS"])
    assert seconds(SERVICES[service]["stop_grace_period"]) > grace + 5


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_confined_watched_and_restarted(service):
    container = SERVICES[service]
    assert container["read_only"] is True
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container["restart"] == "unless-stopped"
    assert container["healthcheck"]["test"]
    assert container["stop_grace_period"]


def test_our_images_do_not_run_as_root():
    stages = re.split(r"^FROM ", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE)
    users = {stage.split()[2]: re.findall(r"^USER (\S+)", stage, flags=re.MULTILINE) for stage in stages[1:]}
    for service in SETTINGS:
        assert users[SERVICES[service]["build"]["target"]][-1] == "leyden"


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_published_to_this_machine_only_unless_told_otherwise(service):
    assert all(interpolated(port).startswith("127.0.0.1:") for port in SERVICES[service].get("ports", []))


def test_redis_appends_to_a_file_on_a_volume_and_evicts_nothing():
    command = interpolated(SERVICES["redis"]["command"][-1])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


def test_the_image_is_given_all_that_its_dockerfile_copies():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.MULTILINE)
    sources = {source.removeprefix("./") for line in copied for source in line.split()}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == let_through
    assert all((ROOT / source).exists() for source in sources)


def test_the_balancer_waits_longer_than_a_held_call():
    balancer = (ROOT / "deploy" / "haproxy.cfg").read_text()
    longest = TypeAdapter(float).validate_python(RunSettings.model_fields["hold_timeout_seconds"].default)
    for side in ("client", "server"):
        found = re.search(rf"^\s*timeout {side} (\w+)$", balancer, flags=re.MULTILINE)
        assert found is not None
        assert seconds(found[1]) > longest


def test_every_variable_that_the_file_reads_is_documented():
    read = set(re.findall(r"\$\{(\w+)", COMPOSE)) | {
        name for service in SERVICES.values() for name, value in service.get("environment", {}).items() if value is None
    }
    assert {name for name in read if f"`{name}`" not in DOCUMENTATION} == set()


def test_docker_accepts_the_file():
    answer = docker_compose("config", "--quiet", key=KEY)
    assert answer.returncode == 0, answer.stderr


def test_docker_accepts_the_smoke_test_beside_it():
    answer = docker_compose("-f", "docker-compose.yml", "-f", "deploy/smoke/compose.yml", "config", "--quiet", key=KEY)
    assert answer.returncode == 0, answer.stderr


def test_nothing_starts_without_a_key():
    answer = docker_compose("config", "--quiet", key=None)
    assert answer.returncode != 0
    assert "LEYDEN_KEY" in answer.stderr


def test_haproxy_accepts_its_configuration():
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    answer = subprocess.run(
        ["haproxy", "-c", "-f", ROOT / "deploy" / "haproxy.cfg"], capture_output=True, text=True, timeout=30
    )
    assert answer.returncode == 0, answer.stderr
