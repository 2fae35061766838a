"""docs/pairing.md, run: every curl command against a real hub, every answer compared with the one that is shown."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge_server.app import Hub
from protocol.errors import API_ERRORS
from tests.support.curl import curl

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "pairing.md"

# Members whose value differs from run to run; what they must look like.
VARYING = {
    "pairing_id": r"[0-9a-f]{32}",
    "code": r"[A-Z]{4}-[A-Z]{4}-[A-Z]{4}",
    "link": r"http://127\.0\.0\.1:\d+/#pair=[A-Z]{4}-[A-Z]{4}-[A-Z]{4}",
    "device_id": r"[a-z2-7]{16}",
    "server_id": r"[a-z2-7]{26}",
    "credential": r"sbd_[A-Za-z0-9_.-]+",
    "expires_at": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z",
    "created_at": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "since": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z",
}
KEPT = {"pairing_id": "PAIRING_ID", "code": "CODE", "credential": "DEVICE_CREDENTIAL", "device_id": "DEVICE_ID"}


class Example(NamedTuple):
    command: str
    status: int
    shown: Any


def examples(page: Path) -> list[Example]:
    found = re.findall(r"```sh\n(.*?)```\n\n```json (\d{3})\n(.*?)```", page.read_text(), re.DOTALL)
    return [Example(command, int(status), json.loads(shown) if shown else None) for command, status, shown in found]


def compare(shown: Any, got: Any, where: str = "") -> None:
    if isinstance(shown, dict):
        assert list(shown) == list(got), where
        for name, value in shown.items():
            if name in VARYING and not where.startswith(".error"):
                assert re.fullmatch(VARYING[name], value), f"{where}.{name} as shown"
                assert re.fullmatch(VARYING[name], got[name]), f"{where}.{name}"
            else:
                compare(value, got[name], f"{where}.{name}")
    elif isinstance(shown, list):
        assert len(shown) == len(got), where
        for number, value in enumerate(shown):
            compare(value, got[number], f"{where}[{number}]")
    else:
        assert shown == got, where


@pytest.mark.requires("curl", "bash")
@pytest.mark.parametrize(("page", "commands"), [(PAGE, 12), (DOCS / "wire.md", 3)], ids=["pairing.md", "wire.md"])
async def test_every_command_of_the_page_answers_as_shown(hub: Hub, page: Path, commands: int) -> None:
    home, token = hub.credentials.add_server("Attic")
    variables = {"HUB": hub.url, "HOME_CREDENTIAL": token, "SERVER_ID": home.server_id}
    found = examples(page)
    assert len(found) == page.read_text().count("```sh\n") == commands
    for command, status, shown in found:
        answered, body = await curl(command, variables)
        assert answered == status, (command, body)
        got = json.loads(body) if body else None
        compare(shown, got)
        if isinstance(got, dict):
            variables |= {KEPT[name]: value for name, value in got.items() if name in KEPT}


def test_every_error_of_the_api_is_on_the_page() -> None:
    table = PAGE.read_text().partition("### Errors")[2].partition("###")[0]
    rows = re.findall(r"^\| (\d{3}) \| (.+?) \| (yes|no)", table, re.MULTILINE)
    told = {code: (int(status), back) for status, codes, back in rows for code in re.findall(r"`(\w+)`", codes)}
    told.pop("retry_after_ms", None)
    assert told == {row.code: (row.status, "yes" if row.come_back else "no") for row in API_ERRORS.values()}
