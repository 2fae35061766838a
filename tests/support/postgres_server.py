"""A PostgreSQL server of the tests' own: made on first use, reached by a socket in its folder, gone at the end."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from tests.support.programs import require

NOBODY = 65534
"""PostgreSQL refuses to run as root."""


class PostgresServer:
    """A running server. `url(schema)` is a database whose tables are in a schema of that name."""

    def __init__(self) -> None:
        # Not in pytest's own folder, which others may not enter; a socket's path has at most 100 characters.
        self._folder = tempfile.TemporaryDirectory(prefix="bridge-pg-", ignore_cleanup_errors=True)
        self.folder = folder = Path(self._folder.name)
        self._as_nobody: list[str] = []
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            self._as_nobody = [require("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        data = folder / "data"
        self._run(
            *(require("initdb"), "-D", data, "-U", "bridge", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        )
        with (folder / "log").open("wb") as log:
            # A crash of the machine is not what these tests are about: no fsync.
            options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
            self._server = subprocess.Popen(
                [*self._as_nobody, require("postgres"), "-D", data, *options], stdout=log, stderr=log, cwd=folder
            )
        deadline = time.monotonic() + 60
        while subprocess.run([require("pg_isready"), "-q", "-h", folder], check=False).returncode:
            assert self._server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [*self._as_nobody, *map(str, command)], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def sql(self, text: str) -> str:
        """What psql says to a statement."""
        command = [require("psql"), "-h", self.folder, "-U", "bridge", "-d", "postgres", "-qAtc", text]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def url(self, schema: str) -> str:
        return f"postgresql://bridge@/postgres?host={quote(str(self.folder), safe='')}&search_path={schema}"

    def stop(self) -> None:
        self._server.send_signal(signal.SIGINT)  # without waiting for clients
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()


_shared: list[PostgresServer] = []


def shared_server() -> PostgresServer:
    """The server of this run of tests, started when it is first needed."""
    if not _shared:
        _shared.append(PostgresServer())
    return _shared[0]


def stop_shared_server() -> None:
    """The run is over."""
    while _shared:
        _shared.pop().stop()
