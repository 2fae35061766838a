"""Machines on this machine: each with a network, a host name and files of its own (Linux namespaces), and a router.

Needs root, `ip` and `nft`. What a machine changes below /etc, in its logs and its home directory, nobody else sees, and
all of it is gone when its first process ends.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes import ROOT, until
from tests.support.programs import SEARCH, require

COMMAND_SECONDS = 60.0

# A machine's first process: makes the mounts, says so, and waits for its end.
_INIT = """
set -e
hostname {name}
cp -a /etc {folder}/etc
mount --bind {folder}/etc /etc
printf '127.0.0.1 localhost {name}\\n{hub} hub.example\\n' > /etc/hosts
for place in /run /var/log/nginx /var/lib/nginx; do
    if [ -d $place ]; then mount -t tmpfs tmpfs $place; fi
done
echo up
read -r _
"""

_NETWORK = """
set -e
ip link set lo up
{lines}
"""

# What a router at home does: lets out what comes from inside, under its own address, and lets nothing in.
_ROUTER = """
set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
nft -f - <<'END'
table ip router {
    chain out { type nat hook postrouting priority 100; iifname "home" masquerade; }
    chain through {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname "home" accept
        iifname { "hub", "app" } oifname { "hub", "app" } accept
    }
}
END
"""


class Running(NamedTuple):
    """A program in the foreground of a machine, and where what it says is written."""

    process: Process
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    async def says(self, what: str) -> None:
        """Wait until it has written `what`; fails when it ends before."""
        await until(lambda: what in self.text or self.process.returncode is not None, f"it says {what!r}", 60.0)
        assert what in self.text, f"it ended with {self.process.returncode}: {self.text[-2000:]}"

    async def interrupt(self) -> int:
        """Ctrl-C; its exit code."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGINT)
        return await self.ended()

    async def ended(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        async with asyncio.timeout(COMMAND_SECONDS):
            return await self.process.wait()


class Machine:
    """One of them. `home` is its home directory, in which commands run; `exports` come before each command."""

    def __init__(self, name: str, folder: Path, init: Process) -> None:
        self.name = name
        self.folder = folder
        self.home = folder / "home"
        self.exports: list[str] = []
        self._init = init
        self._programs = 0

    @property
    def pid(self) -> int:
        """The process that holds its namespaces."""
        return self._init.pid

    async def run(self, command: str) -> tuple[int, str]:
        """Run a shell command to its end: the exit code, and all that it wrote."""
        process = await self._start(command, PIPE)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                output, _ = await process.communicate()
        finally:
            _end(process)
        return int(process.returncode or 0), output.decode()

    async def start(self, command: str) -> Running:
        """Start a program that runs on."""
        self._programs += 1
        path = self.folder / f"{self._programs}.log"
        with path.open("wb") as output:
            return Running(await self._start(command, output.fileno()), path)

    async def _start(self, command: str, output: int) -> Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}
        environment |= {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(self.folder.parent / "bin"), SEARCH]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop("XDG_STATE_HOME", None)
        enter = ("nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", f"--wd={self.home}")
        return await asyncio.create_subprocess_exec(
            *(*enter, "bash", "-euo", "pipefail", "-c", "\n".join([*self.exports, command])),
            env=environment,
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            start_new_session=True,
        )


class Site(NamedTuple):
    """A hub in public, a home behind a router, an app elsewhere."""

    router: Machine
    hub: Machine
    home: Machine
    app: Machine


ADDRESSES = {"hub": "203.0.113.10", "home": "192.168.1.2", "app": "198.51.100.20"}


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    """The machines, connected and named. Skips where this process may not make namespaces."""
    for program in ("ip", "nft", "unshare", "nsenter", "bash"):
        require(program)
    _programs(folder / "bin", folder)
    async with AsyncExitStack() as stack:
        machines = Site(*[await stack.enter_async_context(_machine(name, folder)) for name in Site._fields])
        for machine in (machines.hub, machines.home, machines.app):
            await _connect(machines.router, machine)
        await _do(machines.router, _ROUTER)
        yield machines


@asynccontextmanager
async def _machine(name: str, folder: Path) -> AsyncIterator[Machine]:
    own = folder / name
    (own / "home").mkdir(parents=True)
    init = await asyncio.create_subprocess_exec(
        *("unshare", "--net", "--mount", "--uts", "--propagation", "private"),
        *("sh", "-c", _INIT.format(name=name, folder=shlex.quote(str(own)), hub=ADDRESSES["hub"])),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert init.stdin is not None
    assert init.stdout is not None
    try:
        said = (await init.stdout.readline()).decode()
        if said != "up\n":
            if os.geteuid() != 0 or "not permitted" in said or "denied" in said:
                pytest.skip(f"this process may not make namespaces: {said.strip()}")
            raise AssertionError(f"the machine {name} did not come up: {said}")
        yield Machine(name, own, init)
    finally:
        _end_all(init.pid)
        init.stdin.close()
        await init.wait()


async def _connect(router: Machine, machine: Machine) -> None:
    address = ADDRESSES[machine.name]
    gateway = address.rpartition(".")[0] + ".1"
    # Made inside the router's network, so that no name is taken on the machine that this runs on.
    await _do(router, f"ip link add {machine.name} type veth peer name eth0 netns {machine.pid}")
    await _do(router, f"ip link set lo up; ip addr add {gateway}/24 dev {machine.name}; ip link set {machine.name} up")
    lines = f"ip addr add {address}/24 dev eth0\nip link set eth0 up\nip route add default via {gateway}"
    await _do(machine, _NETWORK.format(lines=lines))


async def _do(machine: Machine, command: str) -> None:
    code, said = await machine.run(command)
    assert code == 0, f"{machine.name}: {command}: {said}"


def _programs(folder: Path, machines: Path) -> None:
    # Our own programs whether or not they are installed, and a way to carry a file without a second ssh server.
    folder.mkdir()
    for name in ("bridge_server", "bridge_client"):
        _write(folder / name.replace("_", "-"), f'exec {shlex.quote(sys.executable)} -m {name}.cli "$@"')
    carry = f"""
case $1 in
    hub.example:*) umask 077; exec cp {shlex.quote(str(machines))}/hub/home/"${{1#*:}}" "$2";;
esac
echo "only from the hub: nothing gets in at home" >&2
exit 1"""
    _write(folder / "scp", carry)


def _write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _end_all(init: int) -> None:
    """End what runs on a machine, daemons too: all that is in its network, but for its first process."""
    network = os.stat(f"/proc/{init}/ns/net").st_ino
    if network == os.stat("/proc/self/ns/net").st_ino:
        return  # it never came up
    found = True
    while found:  # a daemon may start a process while its others are being ended
        found = False
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if int(process) != init and os.stat(f"/proc/{process}/ns/net").st_ino == network:
                    os.kill(int(process), signal.SIGKILL)
                    found = True


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
