"""What deploy/ says, read for the tests: the Dockerfile, and whether a command or a variable of ours exists."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

import bridge_client.cli
import bridge_client.config
import bridge_server.cli
import bridge_server.config
from tests.support.processes import ROOT

DEPLOY: Final = ROOT / "deploy"
PROGRAMS: Final = {
    "bridge-server": (bridge_server.cli.cli, bridge_server.config.Config),
    "bridge-client": (bridge_client.cli.cli, bridge_client.config.Config),
}
SECRET = re.compile(r"(?i)password|secret|token|credential|api_?key")


def checked_command(words: list[str]) -> None:
    """Fail unless our program of that name takes these words: every command and every option is one of its own."""
    command: click.Command = PROGRAMS[Path(words[0]).name][0]
    context = click.Context(command, info_name=words[0], **command.context_settings)
    rest = words[1:]
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{words[0]} has no command {name}"
        command = found
    # Without its parent a command would make its help option anew, and keep it for every later test.
    command.make_context(command.name, rest, parent=context)


def checked_settings(program: str, variables: Mapping[str, str]) -> Any:
    """The configuration that these variables make; fails for one that is no setting."""
    config = PROGRAMS[program][1]
    ours = {name: value for name, value in variables.items() if name.startswith("SESSION_BRIDGE_")}
    known = {f"SESSION_BRIDGE_{name.upper()}" for name in config.__dataclass_fields__} | {"SESSION_BRIDGE_CONFIG"}
    assert ours.keys() <= known
    return config.from_env({name: value for name, value in ours.items() if name != "SESSION_BRIDGE_CONFIG"})


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined, comments gone."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, rest))
    return found


def sources() -> list[str]:
    """What the build stage copies from the source tree."""
    return [source for name, rest in stages()[0] if name == "COPY" for source in rest.split()[:-1]]


def environment() -> dict[str, str]:
    (rest,) = [rest for name, rest in stages()[-1] if name == "ENV"]
    return dict(word.split("=", 1) for word in shlex.split(rest))
