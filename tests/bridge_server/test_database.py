"""The hub's file, opened several times: by threads of the hub, and by the command line beside it."""

import subprocess
import sys
from pathlib import Path

from bridge_server.auth import Credentials

ROOT = Path(__file__).resolve().parents[2]


def test_another_program_that_closes_the_file_cuts_nobody_off(tmp_path: Path) -> None:
    """With two connections in one process, other programs come and go: each change of theirs is seen.

    A file that is opened and closed beside SQLite takes the process's locks along (POSIX), the next program that closes
    the database then believes that it was the last one, and deletes the write-ahead log that this process writes to.
    """
    path = tmp_path / "hub.db"
    first = Credentials(path)
    second = Credentials(path)
    home, _ = first.add_server("Attic")
    for what in ("list", home.server_id):
        words = ["servers", "list"] if what == "list" else ["revoke", home.server_id, "--yes"]
        subprocess.run(
            [sys.executable, "-m", "bridge_server.cli", *words, "--database", path], cwd=ROOT, check=True, timeout=60
        )
        assert (tmp_path / "hub.db-wal").exists()
    assert first.revoked() == second.revoked() == {home.credential_id}
    first.add_server("Cellar")
    first.close()
    second.close()
    third = Credentials(path)
    assert [entry.identity.name for entry in third.servers()] == ["Attic", "Cellar"]
    third.close()
