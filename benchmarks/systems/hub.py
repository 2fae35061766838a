"""The real hub, started by its own command line, with one home and one app credential for each group."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge_server.auth import Credentials
from bridge_server.cli import main as command_line
from bridge_server.config import Config


def main(groups: int) -> None:
    """Serve until killed."""
    with TemporaryDirectory(prefix="bench-hub-") as state:
        credentials = Credentials(Config(state_dir=Path(state)).database_path)
        tenants = []
        for _ in range(groups):
            server, home = credentials.add_server("bench")
            _, app = credentials.add_device(server.server_id, "bench")
            tenants.append({"server_id": server.server_id, "home": home, "app": app})
        credentials.close()
        print(json.dumps({"tenants": tenants}), flush=True)
        sys.argv = ["bridge-server", "serve", "--port", "0", "--state-dir", state, "--log-level", "ERROR", "--json"]
        command_line()


if __name__ == "__main__":
    main(int(sys.argv[1]))
