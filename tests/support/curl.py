"""A curl command of the docs, run."""

import asyncio
import os
from collections.abc import Mapping


async def curl(command: str, variables: Mapping[str, str]) -> tuple[int, str]:
    """The HTTP status and body that a shell command with one curl in it gets. It must not complain."""
    script = command.replace("curl ", "curl --silent --show-error --noproxy '*' --write-out '\\n%{http_code}' ", 1)
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", script),
        env={"PATH": os.environ["PATH"], **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await asyncio.wait_for(process.communicate(), 30)
    assert not complaint, (command, complaint)
    body, _, status = out.decode().rpartition("\n")
    return int(status), body
