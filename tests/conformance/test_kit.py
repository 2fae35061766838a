"""The conformance kit: run on the hub, held to its page, and shown to fail where it should."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge_server.app import Hub
from tests.conformance.__main__ import PAGE, main, page, run
from tests.conformance.kit.check import reachable
from tests.conformance.kit.hub import kit_hub
from tests.conformance.kit.line import Server, Unreachable
from tests.conformance.kit.play import DEVIATION, FAIL, NOT_OFFERED, PASS, play
from tests.conformance.kit.report import as_json, as_text
from tests.conformance.kit.script import BadVector, Vector, deviations, read_steps, rules, vectors


@pytest.mark.lint_allows("status", "response", "number")
async def test_the_page_shows_what_the_kit_says_of_the_hub(tmp_path: Path) -> None:
    """Every rule of the protocol, both versions: nothing fails, and docs/conformance.md is this run."""
    async with kit_hub(tmp_path) as url:
        outcomes = await run(Server.at(url), list(vectors()))
    assert [f"{outcome.vector.id}: {outcome.why}" for outcome in outcomes if outcome.verdict == FAIL] == []
    assert page(outcomes) == PAGE.read_text("utf-8"), "renew it with: python -m tests.conformance --write"
    told = json.loads(json.dumps(as_json(url, outcomes)))
    assert told["summary"][FAIL] == 0
    assert [rule["rule"] for rule in told["rules"]] == list(rules())
    text = as_text(outcomes)
    assert all(f"\n{number:<7}" in text for number in rules())


def test_every_rule_has_a_vector_or_a_reason() -> None:
    shown = {rule for vector in vectors() for rule in vector.rules}
    assert shown <= rules().keys(), "a vector names a rule that is none"
    assert [number for number, rule in rules().items() if (number in shown) == bool(rule.unseen)] == []


def test_every_deviation_is_named_by_a_vector_and_has_a_reason() -> None:
    named = {
        (name, rule)
        for vector in vectors()
        for step in vector.steps
        for name in step.otherwise
        for rule in vector.rules
    }
    assert {name for name, _ in named} == deviations().keys()
    for name, deviation in deviations().items():
        assert deviation.reason
        assert {(name, rule) for rule in deviation.rules} <= named, f"no vector of a rule of {name} names it"


def test_both_versions_and_both_kinds_of_frames_are_played() -> None:
    assert {vector.vsn for vector in vectors()} == {"1.0.0", "2.0.0"}
    marks = {step.mark for vector in vectors() for step in vector.steps}
    assert {">", "<", ">bin", "<bin", ">frame", "<close"} <= marks


JOIN = '> ["1","1","room:1","phx_join",{}]\n'
JOINED = '< ["1","1","room:1","phx_reply",{"status":"ok","response":{}}]\n'


@pytest.mark.parametrize(
    ("steps", "verdict", "why"),
    [
        (JOIN + JOINED, PASS, ""),
        (JOIN + JOINED.replace("ok", "no"), FAIL, '"status":"ok"'),
        (JOIN, FAIL, "nothing more should come"),
        (JOIN + "<nothing\n" + JOINED, FAIL, "nothing more should come"),
        (JOINED, FAIL, "nothing came"),
        (JOIN + JOINED.replace('"1","1"', '1,"1"'), FAIL, "phx_reply"),
        (JOIN + "<close 1003\n~some_name " + JOINED, DEVIATION, ""),
        (">text x\n<close 1011\n", FAIL, "close 1003"),
        (">text x\n<close 1011\n~some_name <close 1003\n" + JOINED, DEVIATION, ""),
        (JOIN + JOINED + '< ["1",null,"room:1","more",{}]\n~some_name\n', DEVIATION, ""),
        ("@ socket ?vsn=3.0.0\n", FAIL, "answered with 403"),
        ("@ socket ?vsn=3.0.0\n= 404\n", FAIL, "the answer was 403"),
        ("@ socket ?vsn=3.0.0\n= 404\n~some_name = 403\n", DEVIATION, ""),
        ("@ nosuch\n", NOT_OFFERED, "no mount"),
        ('> ["1","1","presence_:1","phx_join",{}]\n<close 1000\n', FAIL, "unmatched topic"),
    ],
)
async def test_a_vector_can_fail(tmp_path: Path, steps: str, verdict: str, why: str) -> None:
    vector = Vector("planted", "2.0.0", ("1",), read_steps(steps, "planted"))
    async with kit_hub(tmp_path) as url:
        outcome = await play(vector, Server.at(url, patience=0.3 if steps == JOINED else 5.0))
    assert (outcome.verdict, outcome.deviations) == (verdict, ["some_name"] if verdict == DEVIATION else [])
    assert why in outcome.why


@pytest.mark.parametrize("steps", ["what is this", "~before_any_line\n", "< []\n~twice < []\n~twice < []\n"])
def test_a_vector_that_makes_no_sense_is_refused(steps: str) -> None:
    with pytest.raises(BadVector, match="planted"):
        read_steps(steps, "planted")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nonsense", "no WebSocket URL"),
        ("ws://127.0.0.1:4000", "names no socket"),
        ("ws://127.0.0.1:70000/socket", "no URL"),
        ("ws://127.0.0.1:1/socket", "can't be reached"),
        ("ws://host.invalid/socket", "can't be reached"),
    ],
)
def test_a_server_that_can_not_be_reached_is_one_sentence(url: str, why: str) -> None:
    result = CliRunner().invoke(main, ["--url", url, "--timeout", "5"])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert why in result.output
    assert "Traceback" not in result.output


def test_an_address_without_its_option_is_shown_with_it() -> None:
    result = CliRunner().invoke(main, ["ws://127.0.0.1:4000/socket"])
    assert result.exit_code == 2
    assert "--url ws://127.0.0.1:4000/socket" in result.output


async def test_a_server_that_lacks_what_is_needed_says_what(hub: Hub, tmp_path: Path) -> None:
    """The product's own socket wants a credential, and has no channel for the vectors."""
    url = hub.url.replace("http", "ws")
    with pytest.raises(Unreachable, match=r"credential_missing.*--header"):
        await reachable(Server.at(f"{url}/socket"))
    with pytest.raises(Unreachable, match="404: there is no socket"):
        await reachable(Server.at(f"{url}/sockets"))
    _, token = hub.credentials.add_server("home")
    with pytest.raises(Unreachable, match=r"lobby:1 be joined.*docs/conformance.md"):
        await reachable(Server.at(f"{url}/socket", headers=(f"X-API-Key: {token}",), topic="lobby"))
    async with kit_hub(tmp_path) as other:
        await reachable(Server.at(f"{other}/websocket?uid=one"))


@pytest.mark.parametrize(
    "options", [["--header", "nonsense"], ["--rule", "99"], ["--write", "--rule", "1"], ["--timeout", "0"]]
)
def test_options_that_make_no_sense_are_refused(options: list[str]) -> None:
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_the_command_plays_one_rule_and_prints_json() -> None:
    result = CliRunner().invoke(main, ["--rule", "6", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {vector["verdict"] for vector in told["vectors"]} == {PASS, DEVIATION}
    assert told["deviations"].keys() == {"bad_bearer_subprotocol_is_403"}
