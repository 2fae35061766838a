"""The README's example of bridge.js, run: it pairs, shows events, and after a reload goes on behind the last one."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import aiohttp

from bridge_client.keys import Credential
from bridge_client.pairing import HomeApi
from bridge_server.app import Hub
from protocol.topics import events_topic
from tests.support.programs import missing, require
from tests.support.scripted_home import scripted_home
from tests.test_docs import README, ROOT, section

# What a browser has and this Node lacks: a localStorage that outlives the page, a person who types the code.
BROWSER = """
import { existsSync, readFileSync, writeFileSync } from "node:fs"
import WebSocket from "ws"
const file = process.env.STORAGE
const items = existsSync(file) ? JSON.parse(readFileSync(file, "utf8")) : {}
globalThis.WebSocket ??= WebSocket
globalThis.prompt = () => process.env.CODE
globalThis.localStorage = {
  getItem: (name) => items[name] ?? null,
  setItem: (name, value) => { items[name] = value; writeFileSync(file, JSON.stringify(items)) },
}
"""


async def test_the_example_of_bridge_js_pairs_shows_events_and_resumes(hub: Hub, tmp_path: Path) -> None:
    node, modules = require("node"), ROOT / "tests" / "conformance" / "js" / "node_modules"
    if not (modules / "ws").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "browser.mjs").write_text(BROWSER)
    (tmp_path / "bridge.mjs").write_bytes((ROOT / "bridge_server/web/static/bridge.js").read_bytes())
    _, _, text = section(README, "Connect your own app").partition("`bridge.js`, pairing included")
    code = text.partition("```js\n")[2].partition("```")[0]
    for shown, real in (("https://hub.example/static/bridge.js", "./bridge.mjs"), ("https://hub.example", hub.url)):
        assert shown in code
        code = code.replace(shown, real)
    (tmp_path / "app.mjs").write_text('import "./browser.mjs"\n' + code)

    server, home_token = hub.credentials.add_server("home")
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        invitation = await HomeApi(Credential(hub.url, server.server_id, home_token), session).invite(None, 300)
        storage = tmp_path / "storage.json"
        settings = {**os.environ, "STORAGE": str(storage)}
        async with scripted_home(hub.url, server.server_id, home_token) as home:
            for said, code in (("first", invitation.code), ("third", "")):  # the reload is asked for no code
                page = await asyncio.create_subprocess_exec(
                    *(node, tmp_path / "app.mjs"), stdout=PIPE, stderr=STDOUT, env={**settings, "CODE": code}
                )
                try:
                    assert page.stdout is not None
                    if said == "first":
                        while not hub.topics.listeners(events_topic(server.server_id)):
                            await asyncio.sleep(0.02)
                    (last,) = await home.publish(text=said)
                    seen = b""
                    while said.encode() not in seen:
                        line = await page.stdout.readline()
                        assert line, seen.decode()
                        seen += line
                    while not kept_at(storage, server.server_id, last):  # a moment later
                        await asyncio.sleep(0.02)
                finally:
                    page.kill()
                    await page.communicate()
                if said == "first":
                    await home.publish(text="second")
    assert seen.index(b"second") < seen.index(b"third"), "what came between is there, in its order"
    assert b"first" not in seen
    assert b"missing" not in seen


def kept_at(storage: Path, server_id: str, event_id: str) -> bool:
    """Whether the page has kept this event as its place. Its file may be half written."""
    try:
        cursor = json.loads(json.loads(storage.read_text()).get(f"session-bridge:cursor:{server_id}", "null"))
    except ValueError:
        return False
    return bool(cursor and cursor["id"] == event_id)
