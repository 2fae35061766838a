"""The viewer's files as they are served, the rules its texts keep, and the unit tests of its modules in node."""

import gzip
import re
import subprocess
from pathlib import Path

import aiohttp
import pytest

from bridge_server.app import Hub
from bridge_server.web.routes import FOLDER, content_policy, load
from tests.support.programs import require

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(FOLDER.glob("*.js"))
LOGIC_LIMIT = 17_500


@pytest.mark.requires("node")
def test_the_modules_in_node() -> None:
    tests = sorted(str(path) for path in (ROOT / "tests" / "js").glob("*.test.mjs"))
    assert tests
    ran = subprocess.run([require("node"), "--test", *tests], capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


async def test_the_page_allows_nothing_but_itself(hub: Hub) -> None:
    async with aiohttp.ClientSession() as web, web.get(hub.url) as answer:
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["connect-src"] == f"'self' ws://127.0.0.1:{hub.port} wss://127.0.0.1:{hub.port}"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Connection"] == "close"
        assert "no-cache" in answer.headers["Cache-Control"]


@pytest.mark.parametrize("host", ["", "evil.test; script-src *", "a b", "x'y", "hub.test:80:80", "[::1"])
def test_an_odd_host_header_does_not_get_into_the_policy(host: str) -> None:
    assert "connect-src 'self';" in content_policy(host)


def test_a_plain_host_does() -> None:
    assert "'self' ws://[::1]:4000 wss://[::1]:4000;" in content_policy("[::1]:4000")
    assert "'self' ws://hub.example wss://hub.example;" in content_policy("hub.example")


async def test_everything_the_page_names_is_served_for_good_and_a_second_visit_asks_once(hub: Hub) -> None:
    async with aiohttp.ClientSession() as web:
        async with web.get(hub.url) as answer:
            etag, page = answer.headers["ETag"], await answer.text()
        named = re.findall(r'(?:href|src)="(static/[^"]+)"', page)
        assert {name.rpartition("/")[2] for name in named} == {path.name for path in FOLDER.iterdir()} - {"index.html"}
        for name in named:
            async with web.get(f"{hub.url}/{name}") as answer:
                assert answer.status == 200, name
                assert "immutable" in answer.headers["Cache-Control"]
                assert answer.content_type in ("text/javascript", "text/css")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with web.get(hub.url, headers={"If-None-Match": etag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with web.get(hub.url, headers={"If-None-Match": '"other"'}) as answer:
            assert answer.status == 200


async def test_the_lasting_address_of_the_app_client(hub: Hub) -> None:
    url = f"{hub.url}/static/bridge.js"
    async with aiohttp.ClientSession(auto_decompress=False) as web:
        async with web.get(url, headers={"Accept-Encoding": "gzip, br"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await answer.read()) == (FOLDER / "bridge.js").read_bytes()
            zipped = answer.headers["ETag"]
        async with web.get(url, headers={"Accept-Encoding": "identity"}) as answer:
            assert "Content-Encoding" not in answer.headers
            assert answer.headers["ETag"] != zipped
            assert answer.headers["Vary"] == "Accept-Encoding"
            assert answer.headers["Cache-Control"] == "no-cache"
        for path in ("static/nothing.js", "static/../routes.py", "static/%2e%2e/routes.py", "static/"):
            async with web.get(f"{hub.url}/{path}") as answer:
                assert answer.status == 404, path


@pytest.mark.parametrize(
    ("path", "mode", "status"),
    [("/", "navigate", 200), ("/", "no-cors", 403), ("/", "cors", 403), ("/api/me", "navigate", 403)],
)
async def test_a_link_on_another_site_opens_the_page_and_nothing_else(
    hub: Hub, path: str, mode: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
    async with aiohttp.ClientSession() as web, web.get(hub.url + path, headers=headers) as answer:
        assert answer.status == status


async def test_another_name_for_this_machine_gets_no_page(hub: Hub) -> None:
    headers = {"Host": "rebound.test", "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    async with aiohttp.ClientSession() as web, web.get(hub.url, headers=headers) as answer:
        assert answer.status == 403


def test_the_version_follows_every_file(tmp_path: Path) -> None:
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = load(tmp_path)[1]
    (tmp_path / "style.css").write_text("body {}")
    assert load(FOLDER)[1] == before != load(tmp_path)[1]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_a_text(path: Path) -> None:
    made = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|DOMParser"
        r"|srcdoc|createContextualFragment|\bstyle\.|setAttribute\(\"(?:style|on)",
        path.read_text(),
    )
    assert made == []


def test_the_app_client_needs_no_page_and_stays_small() -> None:
    text = (FOLDER / "bridge.js").read_text()
    assert re.findall(r"^\s*(?:import|export .* from)\b.*|\bdocument\.|\bwindow\.|\bimport\(", text, re.MULTILINE) == []
    logic = re.sub(r"/\*\*[\s\S]*?\*/|^\s*//.*|\s// .*|^\s+", "", text, flags=re.MULTILINE)
    assert LOGIC_LIMIT / 2 < len(logic) < LOGIC_LIMIT


PAIRS = [
    *[(text, ground, 4.5) for text in ("ink", "soft", "accent") for ground in ("paper", "card", "tint")],
    *[(text, ground, 4.5) for text in ("warn", "bad") for ground in ("paper",)],
    *[(name, f"{name}-tint", 4.5) for name in ("good", "warn", "bad", "info")],
    *[("ink", f"{name}-tint", 4.5) for name in ("good", "warn", "bad", "info")],
    *[(text, "tint", 4.5) for text in ("good", "warn")],
    *[("ink", "mine", 4.5), ("on-accent", "accent", 4.5), ("soft", "paper", 4.5)],
    *[("accent", "paper", 3.0), ("soft", "card", 3.0)],  # the focus ring, the border of a field
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))
    weak = {
        pair[:2]: round(contrast(colours[pair[0]], colours[pair[1]]), 2)
        for pair in PAIRS
        if contrast(colours[pair[0]], colours[pair[1]]) < pair[2]
    }
    assert weak == {}


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
