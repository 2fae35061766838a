"""Codes and what a stranger may try: the rules of redemption over the real database, on a clock of the test's own."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_server.auth import Credentials
from bridge_server.pairing import (
    ATTEMPT_MS,
    CLOCK_SLACK_MS,
    MAX_ATTEMPTS,
    MAX_OPEN,
    MAX_WRONG,
    REMEMBER_MS,
    Issued,
    Pairing,
    PairingRefused,
    Pairings,
    judge,
    network,
    status,
    wait_ms,
)
from protocol.pairing import CODE_LETTERS
from tests.support.pairing_desk import HERE, START, VIEW, Desk, unknown, wrong


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "state")
    yield made
    made.credentials.close()


# The decision alone.


def row(state: str = "open", wrong: int = 0, created_at: int = 0, ends_at: int = 1000) -> Pairing:
    return Pairing("p", "s", b"", VIEW, state, wrong, created_at, ends_at, None)


@given(
    st.sampled_from(["open", "redeemed", "closed"]), st.integers(0, MAX_WRONG), st.booleans(), st.integers(-100, 2000)
)
def test_only_the_right_secret_learns_anything(state: str, wrong: int, right: bool, now: int) -> None:
    verdict = judge(row(state, wrong), right, now)
    if not right or wrong >= MAX_WRONG:
        assert verdict == "wrong"
    else:
        assert (verdict == "redeem") == (state == "open" and now < 1000)
        assert (verdict == "reused") == (state == "redeemed")
    assert judge(None, right, now) == "wrong"


def test_what_a_home_is_told() -> None:
    assert [status(row(state, wrong), 999) for state in ("open", "redeemed", "closed") for wrong in (0, 5)] == [
        *("open", "closed"),
        *("redeemed", "redeemed"),
        *("closed", "closed"),
    ]
    assert status(row(), 1000) == "expired"
    assert status(row(created_at=CLOCK_SLACK_MS + 1, ends_at=10**9), 0) == "expired"
    assert status(row(created_at=CLOCK_SLACK_MS, ends_at=10**9), 0) == "open"


@given(st.lists(st.integers(0, 3_000), max_size=60), st.integers(1, 7))
def test_never_more_than_the_limit_in_any_period(gaps: list[int], most: int) -> None:
    now, taken = 0, list[int]()
    for gap in gaps:
        now += gap
        wait = wait_ms(taken, now, most, 5_000)
        if wait == 0:
            taken.append(now)
        else:
            assert wait_ms(taken, now + wait - 1, most, 5_000) > 0
            assert wait_ms(taken, now + wait, most, 5_000) == 0
    for first in taken:
        assert sum(first <= at < first + 5_000 for at in taken) <= most


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("local", "local"),
    ],
)
def test_addresses_count_by_host_or_network(address: str, counts_as: str) -> None:
    assert network(address) == counts_as


# A code serves once.


def test_a_code_makes_a_device_of_that_home_once(desk: Desk) -> None:
    issued = desk.open()
    assert desk.pairings.find(desk.home.server_id, issued.id) == ("open", None)
    device, token, server_name = desk.pairings.redeem(issued.code, " My\x00 phone ", HERE)
    assert desk.credentials.authenticate(token) == device
    assert (device.server_id, device.name, device.scopes) == (desk.home.server_id, "My phone", frozenset(VIEW))
    assert server_name == "Attic"
    assert desk.pairings.find(desk.home.server_id, issued.id) == ("redeemed", device)
    assert desk.refusal(issued.code) == "reused"
    assert len(desk.credentials.devices()) == 1


def test_codes_have_the_promised_form_and_differ(desk: Desk) -> None:
    homes = [desk.credentials.add_server("x")[0] for _ in range(10)]
    codes = [desk.open(home).code for home in homes for _ in range(MAX_OPEN)]
    assert all(len(code.handle) == 4 and len(code.secret) == 8 for code in codes)
    assert set("".join(code.handle + code.secret for code in codes)) == set(CODE_LETTERS)
    assert len({code.handle for code in codes}) == len(codes)


def test_reasons_over_time(desk: Desk) -> None:
    used, old = desk.open(), desk.open()
    desk.redeem(used.code)
    desk.now += 299.999
    assert desk.pairings.find(desk.home.server_id, old.id) == ("open", None)
    desk.now = START + 300
    assert desk.pairings.find(desk.home.server_id, old.id) == ("expired", None)
    assert (desk.refusal(used.code), desk.refusal(wrong(used.code))) == ("reused", "wrong")
    assert (desk.refusal(old.code), desk.refusal(wrong(old.code))) == ("expired", "wrong")
    desk.now = START + REMEMBER_MS / 1000
    assert (desk.refusal(used.code), desk.refusal(old.code)) == ("wrong", "expired")
    desk.now += 300
    assert desk.refusal(old.code) == "wrong"
    with pytest.raises(PairingRefused, match="not_found"):
        desk.pairings.find(desk.home.server_id, old.id)


def test_a_code_that_the_home_closed_no_longer_serves(desk: Desk) -> None:
    issued, used = desk.open(), desk.open()
    device = desk.redeem(used.code)
    for pairing in (issued, issued, used):
        desk.pairings.close(desk.home.server_id, pairing.id)
    assert desk.pairings.find(desk.home.server_id, issued.id) == ("closed", None)
    assert desk.pairings.find(desk.home.server_id, used.id) == ("redeemed", device)
    assert (desk.refusal(issued.code), desk.refusal(used.code)) == ("expired", "reused")


def test_a_revoked_home_pairs_with_nobody(desk: Desk) -> None:
    issued = desk.open()
    desk.credentials.revoke_server(desk.home.server_id)
    assert desk.refusal(issued.code) == "expired"
    assert desk.credentials.devices() == []


# What a stranger may try.


def test_five_wrong_secrets_and_the_pairing_is_dead_for_everybody(desk: Desk) -> None:
    issued, other = desk.open(), desk.open()
    for turn in range(MAX_WRONG - 1):
        assert desk.refusal(wrong(issued.code, turn), f"203.0.113.{turn}") == "wrong"
    assert desk.pairings.find(desk.home.server_id, issued.id) == ("open", None)
    assert desk.refusal(wrong(issued.code, 6), "203.0.113.9") == "wrong"
    assert desk.pairings.find(desk.home.server_id, issued.id) == ("closed", None)
    assert desk.refusal(issued.code, "198.51.100.1") == "wrong"
    assert desk.redeem(other.code, "198.51.100.1")


def test_four_wrong_secrets_leave_the_right_one_its_turn(desk: Desk) -> None:
    issued = desk.open()
    for turn in range(MAX_WRONG - 1):
        desk.refusal(wrong(issued.code, turn))
    assert desk.redeem(issued.code)
    # The one that served was not counted: the fifth wrong secret comes now, and then even `reused` is over.
    assert desk.refusal(issued.code) == "reused"
    assert desk.refusal(wrong(issued.code, 7)) == "wrong"
    assert desk.refusal(issued.code) == "wrong"


def test_twenty_wrong_codes_from_one_address_and_it_waits(desk: Desk) -> None:
    issued = desk.open()
    for turn in range(MAX_ATTEMPTS):
        desk.now += 1
        code = wrong(issued.code, turn) if turn < 3 else unknown(issued)
        assert desk.refusal(code) == "wrong"
    assert desk.refusal(unknown(issued)) == "rate_limited"
    with pytest.raises(PairingRefused) as caught:
        desk.redeem(issued.code)
    assert caught.value.retry_after == ATTEMPT_MS / 1000 - MAX_ATTEMPTS + 1
    # Refused is not compared, so it neither counts nor kills.
    assert desk.redeem(issued.code, "203.0.113.8")
    desk.now += caught.value.retry_after
    assert desk.refusal(unknown(issued)) == "wrong"
    assert desk.refusal(unknown(issued)) == "rate_limited"


def test_right_codes_do_not_count_against_an_address(desk: Desk) -> None:
    for _ in range(MAX_ATTEMPTS + 1):
        issued = desk.open()
        desk.redeem(issued.code)
        assert desk.refusal(issued.code) == "reused"


def test_one_network_of_ipv6_is_one_address(desk: Desk) -> None:
    codes = [unknown()] * MAX_ATTEMPTS
    for turn, code in enumerate(codes):
        assert desk.refusal(code, f"2001:db8:0:1::{turn:x}") == "wrong"
    assert desk.refusal(unknown(), "2001:db8:0:1:ffff::1") == "rate_limited"
    assert desk.refusal(unknown(), "2001:db8:0:2::1") == "wrong"


def test_a_thousand_guesses_over_handles_addresses_and_restarts_stay_within_the_limits(desk: Desk) -> None:
    chance = random.Random(7)
    homes = [desk.credentials.add_server("x")[0] for _ in range(17)]
    issued = [desk.open(home) for home in homes for _ in range(3)][:50]
    places = [f"198.51.100.{number}" for number in range(15)] + [f"2001:db8:0:{number:x}::1" for number in range(15)]
    compared, by_place, answers = Counter[str](), Counter[str](), Counter[str]()
    for turn in range(1_000):
        if turn % 100 == 99:
            desk.restart()
        desk.now += 0.2
        target, place = chance.choice(issued), chance.choice(places)
        answer = desk.refusal(wrong(target.code, chance.randrange(100)), place)
        answers[answer] += 1
        if answer == "wrong":
            compared[target.id] += 1
            by_place[place] += 1
    assert set(answers) == {"wrong", "rate_limited"}
    assert max(by_place.values()) == MAX_ATTEMPTS
    assert answers["wrong"] <= MAX_ATTEMPTS * len(places)
    for number, one in enumerate(issued):
        dead = compared[one.id] >= MAX_WRONG
        assert desk.pairings.find(_home(desk, one), one.id)[0] == ("closed" if dead else "open")
        fresh = f"192.0.2.{number}"
        assert (desk.refusal(one.code, fresh) == "wrong") if dead else desk.redeem(one.code, fresh)
    assert sum(count >= MAX_WRONG for count in compared.values()) > 10


def _home(desk: Desk, issued: Issued) -> str:
    row = desk.credentials.database.connection.execute("SELECT server_id FROM pairings WHERE id = ?", (issued.id,))
    return str(row.fetchone()[0])


def test_a_restart_forgets_nothing(desk: Desk) -> None:
    issued = desk.open()
    for turn in range(MAX_WRONG):
        desk.restart()
        desk.refusal(wrong(issued.code, turn))
    desk.restart()
    assert desk.refusal(issued.code) == "wrong"
    other = desk.open()
    desk.restart()
    assert desk.redeem(other.code)
    desk.restart()
    assert desk.refusal(other.code) == "reused"


REDEEMER = """
import sys
from pathlib import Path
from bridge_server.auth import Credentials
from bridge_server.pairing import PairingRefused, Pairings
from protocol.pairing import parse_code
pairings = Pairings(Credentials(Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
for code in sys.argv[2:]:
    try:
        print(pairings.redeem(parse_code(code), "Phone", "203.0.113.7")[0].device_id)
    except PairingRefused as refusal:
        print(refusal.code)
"""


def test_of_two_processes_that_redeem_the_same_code_exactly_one_wins(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "hub.db")
    pairings = Pairings(credentials)
    homes = [credentials.add_server("x")[0] for _ in range(10)]
    codes = [str(pairings.open(home.server_id, VIEW, 300).code) for home in homes]
    command = [sys.executable, "-c", REDEEMER, str(credentials.database.path), *codes]
    rivals = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    for rival in rivals:
        assert rival.stdout is not None
        assert rival.stdout.readline() == "ready\n"
    for rival in rivals:
        assert rival.stdin is not None
        rival.stdin.write("\n")
        rival.stdin.flush()
    answers = [rival.communicate(timeout=30)[0].split() for rival in rivals]
    assert [len(answer) for answer in answers] == [10, 10]
    for pair in zip(*answers, strict=True):
        assert sorted(answer == "reused" for answer in pair) == [False, True]
    assert len(credentials.devices()) == 10
    credentials.close()


def test_two_processes_share_the_count(desk: Desk) -> None:
    other = Credentials(desk.path, clock=lambda: desk.now)
    rival = Pairings(other, clock=lambda: desk.now)
    issued = desk.open()
    for turn in range(MAX_WRONG):
        with pytest.raises(PairingRefused, match="wrong"):
            (rival if turn % 2 else desk.pairings).redeem(wrong(issued.code, turn), "x", HERE)
    assert desk.refusal(issued.code) == "wrong"
    other.close()
