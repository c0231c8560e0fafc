from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from leyden_gateway.__main__ import main
from leyden_gateway.settings import GatewaySettings, UnsafeSettings, is_loopback


@pytest.mark.parametrize(
    ("host", "key"), [("0.0.0.0", ""), ("::", ""), ("10.0.0.1", "changeme"), ("gpu-box", "sk-1234")]
)
def test_a_reachable_address_needs_a_key_of_its_own(host, key):
    with pytest.raises(UnsafeSettings, match=host):
        GatewaySettings(host=host, key=SecretStr(key)).check()

    GatewaySettings(host=host, key=SecretStr(key), insecure=True).check()
    GatewaySettings(host=host, key=SecretStr("tKx3-a-random-one")).check()
    GatewaySettings(host="127.0.0.1", key=SecretStr(key)).check()


def test_loopback_addresses_are_known():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "192.168.0.1", "example.org")] == [False] * 3


def test_the_contracts_variable_gives_the_key_too(monkeypatch):
    monkeypatch.delenv("LEYDEN_KEY", raising=False)
    monkeypatch.setenv("AGL_KEY", "from-agl")

    assert GatewaySettings().key.get_secret_value() == "from-agl"


def test_the_key_is_not_shown():
    assert "hush" not in repr(GatewaySettings(key=SecretStr("hush")))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0"),
        (["--port", "99999"], "99999"),
        (["--upstream-timeout-seconds", "-1"], "LEYDEN_UPSTREAM_TIMEOUT_SECONDS is '-1'"),
        (["--max-body-bytes", "many"], "many"),
        (["--wrokers", "2"], "wrokers"),
        (["--redis-url", "redis://127.0.0.1:1/0?foo=1"], "'foo' is not an option of it"),
        (["--redis-url", "garbage"], "LEYDEN_REDIS_URL"),
    ],
)
def test_bad_settings_stop_the_start_by_name(arguments, named, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code
    assert named in f"{stopped.value} {capsys.readouterr().err}"


def test_run_default_begins_with_the_rules_of_the_settings():
    rules = GatewaySettings(model="m", val_temperature=0.2, when_paused="hold", hold_timeout_seconds=60).default_run

    assert (rules.model, rules.val_temperature, rules.when_paused, rules.hold_timeout_seconds) == ("m", 0.2, "hold", 60)


def test_the_docs_name_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()

    assert [name for name in GatewaySettings.model_fields if f"`{name}`" not in page] == []


def test_every_setting_is_described_where_help_is_asked_for():
    assert [name for name, field in GatewaySettings.model_fields.items() if not field.description] == []
