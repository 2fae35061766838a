"""The real hub, with one home and one app credential for each group."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bridge_server.app import Hub
from bridge_server.config import Config


async def main(groups: int) -> None:
    """Serve until killed."""
    with TemporaryDirectory(prefix="bench-hub-") as state:
        async with Hub(Config(port=0, state_dir=Path(state))) as hub:
            tenants = []
            for _ in range(groups):
                server, home = hub.credentials.add_server("bench")
                _, app = hub.credentials.add_device(server.server_id, "bench")
                tenants.append({"server_id": server.server_id, "home": home, "app": app})
            print(json.dumps({"port": hub.port, "tenants": tenants}), flush=True)
            await hub.wait_closed()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
