"""What must not be in the repository: this machine's paths, package registries' hosts, anything like a credential."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tests" / "conformance" / "js" / "package-lock.json"


class Ban(NamedTuple):
    pattern: re.Pattern[str]
    why: str
    planted: tuple[str, ...]
    innocent: tuple[str, ...]


# The patterns and examples are written so that this file does not contain what it forbids.
BANS = {
    "registry host": Ban(
        re.compile(
            r"\b(?:test\.)?pypi\.org\b|\bpythonhosted\.org\b|\bregistry\.(?:npmjs\.org|yarnpkg\.com)\b"
            r"|\bnpm\.pkg\.github\.com\b|\bproxy\.golang\.org\b|\bcrates\.io\b"
            r"|^\s*(?:--(?:extra-)?index-url|--find-links|--trusted-host|-[if])\b"
            r"|^\s*registry\s*=",
            re.MULTILINE,
        ),
        "locks and texts must serve whatever registry the reader's machine uses",
        (
            "https://py" + "pi.org/simple",
            "https://files.python" + "hosted.org/packages/x.whl",
            "https://registry.np" + "mjs.org/ws/-/ws-8.tgz",
            "  --index" + "-url https://mirror.example",
            "--find" + "-links /opt/wheels",
            "regis" + "try=https://mirror.example",
        ),
        ("pip install session-bridge", "requirements/dev.in", "the registry of channels", "run --force -fast"),
    ),
    "path of a machine": Ban(
        re.compile(r"(?<![\w.~$}/-])/(?:home|Users|root|farm|work|opt/(?:wheels|pypi[\w-]*))/[\w.~-]+"),
        "a path of the machine that somebody worked on means nothing on another",
        (
            "/ho" + "me/ann/session-bridge",
            "/wo" + "rk/main/protocol",
            "/ro" + "ot/.cache",
            "/Us" + "ers/ann/x",
            "/op" + "t/wheels/x",
        ),
        ("https://example.org/home/page", "GET /sessions/work/x", "~/work/x", "../shared/vectors", "/usr/sbin/nginx"),
    ),
    "credential": Ban(
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
            r"|\b(?:ghp|gho|ghs|ghr|github_pat)_[A-Za-z0-9_]{20,}"
            r"|\bglpat-[A-Za-z0-9_-]{20,}|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-[A-Za-z0-9_-]{50,}"
            r"|\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{24,}|\bAKIA[A-Z0-9]{16}\b|\bxox[abps]-[A-Za-z0-9-]{10,}"
            r"|\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{20,}"
            r"|(?i:\b(?:password|passwd|secret|token|api_?key)\b)[\"']?\s*[:=]\s*[\"'](?=[^\"']*[0-9])[A-Za-z0-9+/_=-]{32,}[\"']"
        ),
        "make it up at run time (secrets.token_urlsafe), so that no reader has to wonder whether it opens something",
        (
            "-----BEGIN " + "EC PRIVATE KEY-----",
            "gh" + "p_" + "a1B2" * 9,
            "sk" + "-ant-" + "a1B2c3" * 6,
            "AK" + "IA" + "ABCDEFGH12345678",
            "tok" + "en = '" + "a1B2c3D4" * 5 + "'",
            '"api' + '_key": "' + "0123456789abcdef" * 2 + '"',
        ),
        ("token = secrets.token_urlsafe(32)", 'token = "made-up"', "sha256:0684952aeae1f5dbfe02d460393385", "ask-me"),
    ),
}


def tracked() -> Iterator[tuple[str, str]]:
    """Every file that is, or is about to be, in the repository, with its text; binary files are passed over."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: nothing tells the project's files from others")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                yield name, data.decode("utf-8", "replace")


@pytest.mark.parametrize("name", BANS)
def test_no_file_holds_a(name: str) -> None:
    ban = BANS[name]
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group().strip()}"
        for path, text in tracked()
        for match in ban.pattern.finditer(text)
    ]
    assert not found, f"\n{ban.why}:\n" + "\n".join(found)


@pytest.mark.parametrize("name", BANS)
def test_the_ban_finds_what_it_forbids_and_nothing_else(name: str) -> None:
    ban = BANS[name]
    assert [text for text in ban.planted if not ban.pattern.search(text)] == []
    assert [text for text in ban.innocent if ban.pattern.search(text)] == []


def test_no_file_is_kept_that_is_to_be_ignored() -> None:
    """What a program makes for itself, and `.gitignore` names, has no place in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: nothing tells the project's files from others")
    assert listed.stdout == ""


def test_no_file_names_this_checkout() -> None:
    """Whatever the folder of this checkout and of this user are called, no file may know."""
    here = {str(ROOT), str(Path.home())} - {"/", "/root"}
    assert [f"{path}: {where}" for path, text in tracked() for where in here if where in text] == []


def test_package_lock_pins_by_hash_and_names_no_address() -> None:
    packages = json.loads(LOCK.read_text())["packages"]
    assert len(packages) > 1
    for name, package in packages.items():
        assert "resolved" not in package, (
            f"{name}: npm wrote an address; tests/conformance/js/.npmrc should prevent that"
        )
        if name:
            assert package["integrity"].startswith("sha512-")


@pytest.mark.parametrize("name", ["dev.txt", "run.txt", "clients.txt", "fuzz.txt"])
def test_python_locks_pin_by_hash(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    pins = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert pins
    for pin in pins:
        assert re.match(r"[a-z0-9-]+==[\w.]+ ", pin), f"{name}: not an exact pin: {pin[:80]}"
        assert "--hash=sha256:" in pin, f"{name}: without a hash: {pin[:80]}"
