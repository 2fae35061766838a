"""The home's settings: three spellings of one name, and an error that uses its owner's."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bridge_client.config import BadConfig, Config, default_state_dir


def test_the_defaults_keep_everything_in_the_state_directory(tmp_path: Path) -> None:
    config = Config.from_env({"XDG_STATE_HOME": str(tmp_path)})
    state = tmp_path / "session-bridge"
    assert config.hub_url is None
    assert (config.store_path, config.credential_path) == (state / "home.db", state / "home-credential.json")
    assert config.name
    assert config.instance_name


def test_the_cursor_lies_beside_the_store_it_speaks_of(tmp_path: Path) -> None:
    one, other = (Config(store=tmp_path / name).cursor_path for name in ("a.db", "b.db"))
    assert one.parent == other.parent == tmp_path
    assert one != other


def test_what_is_kept_of_a_source_is_kept_for_it_alone(tmp_path: Path) -> None:
    sources = (None, "http://127.0.0.1:1/events", "http://127.0.0.1:2/events", "sqlite:a.db?table=t")
    configs = [Config(state_dir=tmp_path, source=source) for source in sources]
    paths = {path for one in configs for path in (one.cursor_path, one.epoch_path, one.address_path)}
    assert len(paths) == 3 * len(sources)
    assert {path.parent for path in paths} == {tmp_path}


def test_every_setting_can_stand_in_the_environment() -> None:
    texts = {
        "hub_url": "https://hub.example/bridge",
        "state_dir": "~/state",
        "store": "/store.db",
        "credential_file": "/credential.json",
        "name": "Attic",
        "instance": "one",
        "log_level": "DEBUG",
        "log_json": "true",
        "source": "sqlite:/agent.db?table=events",
        "source_token_file": "/token",
        "api": "false",
        "api_host": "::1",
        "api_origins": "https://a.example, https://b.example",
        "runner": "command",
        "runner_url": "http://127.0.0.1:11434/v1",
        "runner_model": "small",
        "runner_key_env": "MY_KEY",
        "runner_key_file": "/key",
        "runner_system": "Be brief.",
        "runner_tools": "/project",
        "runner_ask": "false",
        "runner_command": "agent --say 'good morning'",
        "runner_resume": "agent --go-on",
        "runner_format": "codex",
        "runner_dir": "/project",
    }
    environ = {f"SESSION_BRIDGE_{row.name.upper()}": texts.get(row.name, "7") for row in fields(Config)}
    config = Config.from_env(environ)
    assert config.hub_url == texts["hub_url"]
    assert config.state_dir == Path.home() / "state"
    assert (config.store_path, config.credential_path) == (Path("/store.db"), Path("/credential.json"))
    assert (config.name, config.instance_name, config.log_json) == ("Attic", "one", True)
    assert (config.source, config.source_token_file) == (texts["source"], Path("/token"))
    assert (config.api, config.api_host) == (False, "::1")
    assert config.api_origins == ("https://a.example", "https://b.example")
    assert (config.runner_ask, config.runner_tools, config.runner_dir) == (False, Path("/project"), Path("/project"))
    for name in ("runner", "runner_url", "runner_model", "runner_key_env", "runner_system", "runner_command"):
        assert getattr(config, name) == texts[name]
    assert {getattr(config, row.name) for row in fields(Config) if row.name not in texts} == {7}


def test_options_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text('[home]\nname = "file"\ninstance = "file"\nheartbeat = 3\n[hub]\nport = 1\n')
    environ = {"SESSION_BRIDGE_CONFIG": str(file), "SESSION_BRIDGE_INSTANCE": "environment"}
    config = Config.from_env(environ, heartbeat=9.0, store=None)
    assert (config.name, config.instance, config.heartbeat, config.store) == ("file", "environment", 9.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hub_url", "hub.example"),
        ("hub_url", "ftp://hub.example"),
        ("hub_url", "https://"),
        ("hub_url", "https://h:x"),
        ("hub_url", "https://user:pw@hub.example"),
        ("hub_url", "https://hub.example/?token=x"),
        ("store", "postgresql://me:secret@db.example/agent"),
        ("window_events", "0"),
        ("heartbeat", "soon"),
        ("log_level", "LOUD"),
        ("log_json", "perhaps"),
        ("api_port", "65536"),
        ("api_origins", "*"),
        ("api_origins", "app.example"),
        ("source", "agent.db"),
        ("source", "sqlite:agent.db"),
    ],
)
def test_a_bad_value_is_named_as_it_was_written(name: str, value: str) -> None:
    with pytest.raises(BadConfig, match=f"SESSION_BRIDGE_{name.upper()}"):
        Config.from_env({f"SESSION_BRIDGE_{name.upper()}": value})


def test_a_database_server_is_no_store_of_a_home_and_its_password_is_not_shown() -> None:
    with pytest.raises(BadConfig, match="in SQLite and nothing else") as refusal:
        Config.from_env({"SESSION_BRIDGE_STORE": "postgresql://me:secret@db.example/agent"})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("text", ["[home]\nnaem = 1\n", "home = 1\n", "[home\n"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(text)
    with pytest.raises(BadConfig, match=r"bridge\.toml"):
        Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)})


def test_hub_and_home_share_one_state_directory() -> None:
    from bridge_server.config import default_state_dir as hubs

    for environ in ({"XDG_STATE_HOME": "/x"}, {}, {"XDG_STATE_HOME": "relative"}):
        assert default_state_dir(environ) == hubs(environ)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"runner": "oracle"}, "--runner = 'oracle'"),
        ({"runner": "openai"}, "runner_model: name the model"),
        ({"runner": "openai", "runner_model": "m", "runner_url": "ftp://x"}, "must be http"),
        ({"runner": "openai", "runner_model": "m", "runner_key_env": "K", "runner_key_file": "/k"}, "name one of them"),
        ({"runner": "command"}, "runner_command: name the command line"),
        ({"runner": "command", "runner_command": "agent 'x"}, "its quotes do not match"),
    ],
)
def test_a_runner_that_can_not_be_used_is_refused_by_its_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(said)):
        Config.from_env({}, **settings)


def test_the_key_of_an_endpoint_is_in_the_environment_under_the_name_that_its_owner_chose() -> None:
    config = Config(runner="openai", runner_model="m", runner_key_env="MY_KEY")
    assert config.runner_key({"MY_KEY": " k-1\n"}) == "k-1"
    assert Config(runner="openai", runner_model="m").runner_key({}) == ""
    with pytest.raises(BadConfig, match="the environment has no MY_KEY"):
        config.runner_key({"MY_KEY": " "})


def test_a_bad_value_or_name_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"SESSION_BRIDGE_WINDOW_EVENTS = 'many': must be a whole number$"):
        Config.from_env({"SESSION_BRIDGE_WINDOW_EVENTS": "many"})
    file = tmp_path / "bridge.toml"
    file.write_text("[home]\napi_prot = 1\n")
    with pytest.raises(BadConfig, match=r"has no setting 'api_prot'; did you mean api_port\?"):
        Config.from_env({"SESSION_BRIDGE_CONFIG": str(file)})
