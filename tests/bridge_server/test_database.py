"""The database file that several connections and several processes share."""

import subprocess
import sys
from pathlib import Path

from bridge_server.auth import Credentials

ROOT = Path(__file__).resolve().parents[2]


def in_another_process(path: Path, work: str) -> None:
    """Run `work` on the database as `credentials`; that process is the last of its own to leave the file."""
    program = (
        "import sys; from pathlib import Path; from bridge_server.auth import Credentials\n"
        f"credentials = Credentials(Path(sys.argv[1]))\n{work}\ncredentials.close()"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, check=True, timeout=30)


def test_a_second_connection_of_this_process_leaves_the_first_its_locks(tmp_path: Path) -> None:
    """Closing any handle on the file drops this process's locks on it: then another one would remove the WAL."""
    path = tmp_path / "hub.db"
    first = Credentials(path)
    home, _ = first.add_server("Attic")
    second = Credentials(path)
    assert first.changed()
    for _ in range(2):  # whoever comes and goes
        in_another_process(path, f"credentials.add_device({home.server_id!r}, 'Phone')")
        assert first.changed()
        assert first.revoked() == frozenset()
    in_another_process(path, f"credentials.revoke_server({home.server_id!r})")
    assert first.changed()
    assert home.credential_id in first.revoked()
    second.close()
    first.close()
