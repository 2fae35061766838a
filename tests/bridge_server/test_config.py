"""The hub's settings: three spellings of one name, and an error that uses the operator's."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from bridge_server.config import BadConfig, Config, default_state_dir


def test_the_defaults_are_closed_to_strangers(tmp_path: Path) -> None:
    config = Config.from_env({"XDG_STATE_HOME": str(tmp_path)})
    assert (config.host, config.port, config.origins, config.trusted_proxies) == ("127.0.0.1", 4000, (), ())
    assert not config.allow_query_credentials
    assert config.local_enrolment
    assert config.database_path == tmp_path / "session-bridge" / "hub.db"
    assert config.max_frame_bytes == config.max_event_bytes + 65_536


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "0.0.0.0"},
        {"host": "192.0.2.1"},
        {"public_url": "https://hub.example"},
        {"trusted_proxies": ("10.0.0.1",)},
        {"auto_enrol": False},
    ],
)
def test_whatever_lets_others_in_ends_enrolment_by_file(changed: dict[str, object]) -> None:
    assert not Config(**changed).local_enrolment  # type: ignore[arg-type]


def test_every_setting_can_stand_in_the_environment() -> None:
    texts = {
        "host": "::1",
        "state_dir": "~/state",
        "database": "/db",
        "public_url": "https://x",
        "trusted_proxies": "10.0.0.0/8, ::1",
        "origins": "https://a.example,https://b.example:8443,//*.c.example",
        "auto_enrol": "false",
        "allow_query_credentials": "true",
        "log_level": "DEBUG",
        "log_json": "1",
        "compression": "true",
        "drain_code": "abort",
    }
    environ = {f"SESSION_BRIDGE_{row.name.upper()}": texts.get(row.name, "7") for row in fields(Config)}
    config = Config.from_env(environ)
    assert config.trusted_proxies == ("10.0.0.0/8", "::1")
    assert config.origins == ("https://a.example", "https://b.example:8443", "//*.c.example")
    assert (config.auto_enrol, config.allow_query_credentials, config.log_json) == (False, True, True)
    assert (config.compression, config.drain_code) == (True, "abort")
    assert config.state_dir == Path.home() / "state"
    assert config.database_path == Path("/db")
    assert {getattr(config, row.name) for row in fields(Config) if row.name not in texts} == {7}


def test_options_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text('[hub]\nport = 1\nhost = "::1"\nidle_timeout = 5\n[home]\nname = "x"\n')
    environ = {"SESSION_BRIDGE_CONFIG": str(file), "SESSION_BRIDGE_PORT": "2", "SESSION_BRIDGE_HOST": ""}
    config = Config.from_env(environ, idle_timeout=9.0, log_level=None)
    assert (config.host, config.port, config.idle_timeout, config.log_level) == ("::1", 2, 9.0, "INFO")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "70000"),
        ("port", "http"),
        ("auto_enrol", "perhaps"),
        ("log_level", "LOUD"),
        ("idle_timeout", "0"),
        ("idle_timeout", "nan"),
        ("public_url", "hub.example"),
        ("origins", "*"),
        ("origins", "https://a.example/path"),
        ("origins", "https://a*.example"),
        ("origins", "a.example"),
        ("origins", "null"),
        ("drain_code", "1000"),
        ("drain_code", "4000"),
        ("address_connections", "0"),
        ("ping_interval", "-1"),
        ("trusted_proxies", "10.0.0.1/8"),
    ],
)
def test_a_bad_value_is_named_as_it_was_written(name: str, value: str) -> None:
    with pytest.raises(BadConfig, match=f"SESSION_BRIDGE_{name.upper()}"):
        Config.from_env({f"SESSION_BRIDGE_{name.upper()}": value})
    with pytest.raises(BadConfig, match=f"--{name.replace('_', '-')}"):
        Config.from_env({}, **{name: value.split(",") if name in ("origins", "trusted_proxies") else value})


@pytest.mark.parametrize("text", ["[hub]\nprot = 1\n", "hub = 1\n", "[hub\n", '[hub]\nport = "x"\n', "\x00"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(text)
    with pytest.raises(BadConfig, match=r"bridge\.toml"):
        Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)})
    file.unlink()
    with pytest.raises(BadConfig, match="SESSION_BRIDGE_CONFIG"):
        Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)})


def test_the_state_directory_follows_xdg() -> None:
    assert default_state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/session-bridge")
    for relative in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "here"}):
        assert default_state_dir(relative) == Path.home() / ".local" / "state" / "session-bridge"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SESSION_BRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SESSION_BRIDGE_PORT", "4321")
    assert Config.from_env().port == 4321


def test_the_default_idle_timeout_outlives_two_heartbeats_and_it_may_be_as_short_as_a_second() -> None:
    """Cases 17 and 19: clients beat every 30 s, and some routers cut after 55."""
    assert Config().idle_timeout >= 2 * 30 + 10
    assert Config.from_env({"SESSION_BRIDGE_IDLE_TIMEOUT": "1"}).idle_timeout == 1.0


def test_the_code_of_a_drain_may_be_written_as_a_number(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    for text, meant in (("1001", 1001), ("1013", 1013), ('"abort"', "abort")):
        file.write_text(f"[hub]\ndrain_code = {text}\n")
        assert Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)}).drain_code == meant


def test_a_bad_value_or_name_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"SESSION_BRIDGE_MAX_CONNECTIONS = 'many': must be a whole number$"):
        Config.from_env({"SESSION_BRIDGE_MAX_CONNECTIONS": "many"})
    file = tmp_path / "bridge.toml"
    file.write_text("[hub]\nprot = 1\n")
    with pytest.raises(BadConfig, match=r"has no setting 'prot'; did you mean port\?"):
        Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)})
