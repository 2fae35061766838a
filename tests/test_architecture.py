"""The arrows of the source tree, read from the code itself: who may import whom, print, read the environment.

Each rule is a function from a source tree to its breaches, one line each: "file:line: what is wrong". Each is run on
this project (which must have none) and on small invented trees with one breach planted (which it must find).
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import PACKAGES, Module, Tree, dotted, within

ROOT = Path(__file__).resolve().parent.parent

# Folders whose __init__ is a contract and whose other modules implement it.
DRAWERS = (
    "bridge_server.archive",
    "bridge_server.history",
    "bridge_server.pubsub",
    "bridge_server.transports",
    "bridge_client.runners",
    "bridge_client.sources",
    "bridge_client.store",
)

# From the wire inwards. Each layer may import those after it, never one before it.
LAYERS = ("bridge_server.transports.*", "bridge_server.peer", "bridge_server.channels", "bridge_server.hub")

# Input that is not an argument: the network, the disk, the clock, chance, the process around us.
IMPURE = (
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "signal", "subprocess", "threading"),
    *("http", "select", "selectors", "socket", "socketserver", "ssl", "urllib.request"),
    *("fcntl", "glob", "importlib", "mmap", "os", "pathlib", "shutil", "sqlite3", "sys", "tempfile"),
    *("logging", "random", "secrets", "time", "uuid"),
)

OPTIONAL_DRIVERS = {
    "asyncpg": "postgres",
    "grpc": "grpc",
    "grpc_health": "grpc",
    "grpc_reflection": "grpc",
    "hiredis": "redis",
    "nats": "nats",
    "redis": "redis",
}

MAX_LINES = 400
MAX_TEST_LINES = 600  # a test is read by itself: a long file of them is a long list, not a tangle
LONG_FILES: dict[str, str] = {}
"""Files that may be longer than MAX_LINES: path -> why."""


def protocol_imports_only_stdlib_and_msgspec(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        top = imported.partition(".")[0]
        if module.package == "protocol" and top not in {*sys.stdlib_module_names, "msgspec", "protocol"}:
            yield module.at(
                line, f"protocol imports {imported}; only the standard library and msgspec are allowed there"
            )


def protocol_does_no_io(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        if module.package == "protocol" and within(imported, *IMPURE):
            yield module.at(
                line, f"protocol imports {imported}; it has no I/O, clock, chance or log: pass the value in"
            )
    for module in tree.modules.values():
        for node in ast.walk(module.tree):
            if module.package != "protocol":
                break
            if isinstance(node, ast.Call) and dotted(node.func) in {"open", "input", "print"}:
                yield module.at(node.lineno, f"protocol calls {dotted(node.func)}(); it has no I/O")
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                yield module.at(node.lineno, "protocol waits for something; it has no I/O")
            if (
                isinstance(node, ast.Attribute)
                and node.attr in {"now", "utcnow", "today"}
                and "date" in dotted(node.value)
            ):
                yield module.at(node.lineno, f"protocol reads the clock with {dotted(node)}; pass the time in")


def the_two_sides_never_meet(tree: Tree) -> Iterator[str]:
    other = {"bridge_server": "bridge_client", "bridge_client": "bridge_server"}
    for module, (line, imported) in tree.pairs():
        if within(imported, other.get(module.package, "-")):
            yield module.at(line, f"{module.package} imports {imported}; what both need belongs in protocol")


def layers_point_inwards(tree: Tree) -> Iterator[str]:
    def layer(name: str) -> int | None:
        return next((at for at, pattern in enumerate(LAYERS) if within(name, pattern)), None)

    for module, (line, imported) in tree.pairs():
        mine, theirs = layer(module.name), layer(imported)
        if mine is not None and theirs is not None and theirs < mine:
            yield module.at(line, f"{module.name} imports {imported}, a layer above it; hand in what it needs")
        elif within(module.name, *LAYERS[2:]) and imported == "bridge_server.transports":
            yield module.at(line, f"{module.name} imports {imported}; only a peer knows that there are transports")


def contracts_import_no_implementation(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        if module.name not in DRAWERS:
            continue
        if within(imported, f"{module.name}.*"):
            yield module.at(line, f"the contract {module.name} imports its backend {imported}")
        elif within(imported, *LAYERS, f"{module.package}.app", f"{module.package}.cli"):
            yield module.at(line, f"the contract {module.name} imports {imported}; contracts are the innermost layer")


def only_app_imports_a_backend(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        for drawer in DRAWERS:
            if (
                within(imported, f"{drawer}.*")
                and not within(module.name, drawer)
                and module.name != f"{module.package}.app"
            ):
                yield module.at(
                    line, f"{module.name} imports the backend {imported}; only {module.package}/app.py does that"
                )


def is_command_line(module: Module) -> bool:
    """Whether this is a package's cli.py, or a part of it: cli_*.py."""
    return module.leaf == "cli" or module.leaf.startswith("cli_")


def only_cli_imports_app(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        app = f"{module.package}.app"
        if within(imported, app) and module.name != app and not is_command_line(module):
            yield module.at(
                line, f"{module.name} imports {app}, which puts everything together; only the command line does"
            )


def only_cli_prints(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        if module.leaf == "render" or is_command_line(module):
            continue
        for line, imported in tree.imports(module):
            if within(imported, "click", "rich"):
                yield module.at(
                    line, f"{module.name} imports {imported}; only cli.py and render.py speak to the terminal"
                )
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and dotted(node.func) == "print":
                yield module.at(node.lineno, "print() outside cli.py; log it, or return it")
            if isinstance(node, ast.Attribute) and dotted(node) in {"sys.stdout", "sys.stderr"}:
                yield module.at(node.lineno, f"{dotted(node)} outside cli.py; log it, or return it")
            if isinstance(node, ast.ImportFrom) and node.module == "sys":
                for alias in node.names:
                    if alias.name in {"stdout", "stderr"}:
                        yield module.at(node.lineno, f"sys.{alias.name} outside cli.py; log it, or return it")


def only_config_reads_the_environment(tree: Tree) -> Iterator[str]:
    names = {"environ", "environb", "getenv", "getenvb"}
    for module in tree.modules.values():
        if module.leaf == "config":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in names and dotted(node.value) == "os":
                yield module.at(node.lineno, f"os.{node.attr} outside config.py; make it a setting")
            if (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and names & {alias.name for alias in node.names}
            ):
                yield module.at(node.lineno, "the environment is read outside config.py; make it a setting")


def no_module_is_a_drawer_for_odds_and_ends(tree: Tree) -> Iterator[str]:
    for path in tree.files:
        relative = path.relative_to(tree.root)
        if vague := {"utils", "util", "helpers", "helper", "common", "misc"} & {*relative.with_suffix("").parts}:
            yield f"{relative.as_posix()}:1: `{vague.pop()}` says nothing; name the module after the one idea in it"


def optional_drivers_stay_in_their_file(tree: Tree) -> Iterator[str]:
    for module, (line, imported) in tree.pairs():
        home = OPTIONAL_DRIVERS.get(imported.partition(".")[0])
        if home and module.leaf != home:
            yield module.at(
                line, f"{module.name} imports {imported}, an extra that may be missing; only a {home}.py may"
            )


def files_stay_short(tree: Tree) -> Iterator[str]:
    for path in tree.files:
        relative = path.relative_to(tree.root).as_posix()
        most = MAX_TEST_LINES if relative.startswith("tests/") else MAX_LINES
        if (lines := len(path.read_text().splitlines())) > most and relative not in LONG_FILES:
            yield f"{relative}:{most}: {lines} lines; more than {most} is more than one idea: split it"


Rule = Callable[[Tree], Iterator[str]]

# Each rule with what it must object to: one file, put into the innocent tree below.
PLANTED: dict[Rule, list[tuple[str, str]]] = {
    protocol_imports_only_stdlib_and_msgspec: [
        ("protocol/codec.py", "import aiohttp"),
        ("protocol/codec.py", "from bridge_server.hub import Hub"),
        ("protocol/codec.py", "def late():\n    import websockets.frames"),
    ],
    protocol_does_no_io: [
        ("protocol/server.py", "import asyncio"),
        ("protocol/server.py", "from time import monotonic"),
        ("protocol/server.py", "import logging.handlers"),
        ("protocol/server.py", "from urllib import request"),
        ("protocol/server.py", "def load(path):\n    return open(path).read()"),
        ("protocol/server.py", "async def receive(): ..."),
        ("protocol/server.py", "from datetime import datetime\nstart = datetime.now()"),
    ],
    the_two_sides_never_meet: [
        ("bridge_server/hub.py", "from bridge_client import store"),
        ("bridge_client/link.py", "import bridge_server.hub"),
    ],
    layers_point_inwards: [
        ("bridge_server/hub.py", "from bridge_server import peer"),
        ("bridge_server/hub.py", "from bridge_server.channels import Channel"),
        ("bridge_server/hub.py", "from bridge_server.transports import Transport"),
        ("bridge_server/channels/app.py", "from bridge_server.peer import Peer"),
        ("bridge_server/channels/app.py", "from ..transports import websocket"),
        ("bridge_server/channels/__init__.py", "from .. import transports"),
        ("bridge_server/peer.py", "def late():\n    from bridge_server.transports import port"),
    ],
    contracts_import_no_implementation: [
        ("bridge_server/pubsub/__init__.py", "from .memory import MemoryPubSub"),
        ("bridge_client/store/__init__.py", "import bridge_client.store.sqlite"),
        ("bridge_server/transports/__init__.py", "from bridge_server.peer import Peer"),
        ("bridge_server/pubsub/__init__.py", "from bridge_server.hub import Hub"),
    ],
    only_app_imports_a_backend: [
        ("bridge_server/hub.py", "from bridge_server.pubsub import memory"),
        ("bridge_client/cli.py", "from bridge_client.store.sqlite import Store"),
        ("bridge_client/sources/store.py", "from bridge_client.store.sqlite import Store"),
    ],
    only_cli_imports_app: [
        ("bridge_server/hub.py", "from bridge_server.app import Hub"),
        ("bridge_client/link.py", "from bridge_client import app"),
    ],
    only_cli_prints: [
        ("bridge_server/hub.py", "print('here')"),
        ("bridge_server/hub.py", "import sys\nsys.stderr.write('here')"),
        ("bridge_client/link.py", "from sys import stdout"),
        ("bridge_client/link.py", "import click"),
        ("bridge_client/link.py", "from rich.console import Console"),
    ],
    only_config_reads_the_environment: [
        ("bridge_server/auth.py", "import os\nkey = os.environ['KEY']"),
        ("bridge_server/auth.py", "import os\nkey = os.getenv('KEY')"),
        ("bridge_client/link.py", "from os import environ"),
    ],
    no_module_is_a_drawer_for_odds_and_ends: [
        ("bridge_server/utils.py", ""),
        ("tests/helpers/fake.py", ""),
        ("protocol/common.py", ""),
    ],
    optional_drivers_stay_in_their_file: [
        ("bridge_server/app.py", "import redis.asyncio"),
        ("bridge_server/archive/sqlite.py", "from asyncpg import connect"),
        ("bridge_server/pubsub/redis.py", "import nats"),
    ],
    files_stay_short: [
        ("bridge_server/hub.py", "\n" * (MAX_LINES + 1)),
        ("tests/test_hub.py", "\n" * (MAX_TEST_LINES + 1)),
    ],
}

# What every rule must let pass.
INNOCENT = {
    "protocol/__init__.py": "",
    "protocol/codec.py": "import json\nimport msgspec\nfrom urllib.parse import quote\nfrom . import frames",
    "protocol/frames.py": "from datetime import datetime\ndef when(at: datetime): return at.isoformat()",
    "bridge_server/__init__.py": "",
    "bridge_server/app.py": "from bridge_server.pubsub.memory import MemoryPubSub\nfrom bridge_server.hub import Hub",
    "bridge_server/channels/__init__.py": "from bridge_server.hub import Hub",
    "bridge_server/cli.py": "import sys\nimport click\nfrom bridge_server.app import App\nprint(sys.stdout)",
    "bridge_server/config.py": "import os\nport = os.environ.get('BRIDGE_PORT')",
    "bridge_server/hub.py": "import os\nfrom bridge_server.pubsub import PubSub\npid = os.getpid()",
    "bridge_server/peer.py": "from bridge_server.channels import Channel\nfrom . import transports",
    "bridge_server/pubsub/__init__.py": "import logging",
    "bridge_server/pubsub/memory.py": "from bridge_server.pubsub import PubSub",
    "bridge_server/pubsub/redis.py": "import redis.asyncio",
    "bridge_server/transports/__init__.py": "from protocol.codec import Codec",
    "bridge_server/transports/port.py": "from bridge_server.peer import Peer\nfrom . import websocket",
    "bridge_server/transports/websocket.py": "from bridge_server.peer import Peer",
    "bridge_client/__init__.py": "",
    "bridge_client/app.py": "from bridge_client.store.sqlite import Store\nfrom bridge_client import link",
    "bridge_client/cli.py": "import click\nfrom bridge_client.app import run",
    "bridge_client/cli_more.py": "import click\nfrom bridge_client import app",
    "bridge_client/store/__init__.py": "from typing import Protocol",
    "bridge_client/store/sqlite.py": "import sqlite3\nfrom bridge_client.store import Stored",
    "bridge_client/render.py": "from rich.console import Console",
    "bridge_client/link.py": "from protocol.codec import Codec\nimport websockets",
}


def grow(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


def test_this_is_the_whole_tree() -> None:
    assert {module.package for module in Tree(ROOT).modules.values()} == set(PACKAGES)


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule) -> None:
    breaches = sorted(set(rule(Tree(ROOT))))
    assert not breaches, "\n" + "\n".join(breaches)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [(rule, *plant) for rule, plants in PLANTED.items() for plant in plants],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_rule_finds_a_planted_breach(tmp_path: Path, rule: Rule, path: str, text: str) -> None:
    breaches = list(rule(grow(tmp_path, {**INNOCENT, path: text})))
    assert breaches
    assert all(breach.startswith(f"{path}:") for breach in breaches)


@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_rule_lets_innocent_code_pass(tmp_path: Path, rule: Rule) -> None:
    assert list(rule(grow(tmp_path, INNOCENT))) == []


def test_every_exception_is_still_needed() -> None:
    """An exception for a file that has become short, or is gone, must go as well."""
    for name, why in LONG_FILES.items():
        assert why
        assert len((ROOT / name).read_text().splitlines()) > MAX_LINES
