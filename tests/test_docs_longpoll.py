"""The long-poll section of docs/wire.md, run: its curl commands against a real hub, its tables against the code."""

import json
import re
from pathlib import Path

import pytest

from bridge_server.app import Hub
from bridge_server.transports.longpoll_wire import Status
from tests.support.curl import curl
from tests.test_docs import section, tables

WIRE = Path(__file__).resolve().parent.parent / "docs" / "wire.md"
TEXT = section(WIRE, "Long polling")
EXAMPLES = re.findall(r"```bash\n(.*?)```\n\n```json\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.requires("curl", "bash")
async def test_every_command_of_the_section_answers_as_shown(hub: Hub) -> None:
    server, _ = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    variables = {"HUB": hub.url, "CREDENTIAL": token, "SERVER_ID": server.server_id, "TOKEN": ""}
    assert len(EXAMPLES) == TEXT.count("```bash\n") == 4
    for command, shown in EXAMPLES:
        _, body = await curl(command, variables)
        got = json.loads(body)
        wanted = json.loads(shown)
        variables["TOKEN"] = got.get("token") or variables["TOKEN"]
        if "token" in wanted:
            assert got.pop("token") == variables["TOKEN"]
            del wanted["token"]
        if wanted.get("messages"):
            assert "phx_reply" in got["messages"][0]
            del got["messages"], wanted["messages"]
        assert got == wanted, command


def test_every_status_is_explained() -> None:
    polls, posts = tables(TEXT)
    told = {int(number) for row in (*polls, *posts) for number in next(iter(row.values())).split(", ")}
    assert told == set(Status)
