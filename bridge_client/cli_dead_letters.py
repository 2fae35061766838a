"""The commands about events that could not be forwarded: `dead-letters`. Prints; the work is in `dead_letters.py`."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bridge_client.cli_parts import EXIT_CODES, as_json_option, fail, run, say, state_dir_option, store_option
from bridge_client.config import Config
from bridge_client.dead_letters import DeadLetters, Letter, plain_text
from bridge_client.lazy import lazily
from bridge_client.store import EventStore
from protocol.errors import InvalidEvent

if TYPE_CHECKING:
    from bridge_client import app, render
else:
    app, render = lazily("bridge_client.app"), lazily("bridge_client.render")

_source = click.option(
    "--source", help="Those of this source, as `bridge-client forward` has it; default: those of the store."
)
_numbers = click.argument("numbers", nargs=-1, type=click.IntRange(min=1))
_all = click.option("--all", "everything", is_flag=True, help="All there are.")


def add_to(cli: click.Group) -> None:
    """Give `cli` these commands."""
    cli.add_command(dead_letters)


@click.group("dead-letters", epilog=EXIT_CODES)
def dead_letters() -> None:
    """The events that the hub would not take: longer than it allows, or such that it broke off at them.

    Each was tried three times, then set aside, so that those behind it could follow. Apps got a tombstone in its place
    ({"type": "unforwardable", "reason": …}). Nothing is lost: here it can be looked at, sent anew, or dropped.

    \b
        bridge-client dead-letters list
        bridge-client dead-letters show 3
        bridge-client dead-letters resend 3      # after the hub's limit was raised, for instance
        bridge-client dead-letters drop 3
    """


@dead_letters.command("list", epilog=EXIT_CODES)
@store_option
@_source
@state_dir_option
@as_json_option
def list_letters(as_json: bool, **options: Any) -> None:
    """List the dead letters, oldest first: number, event, when, size, type, session, and why.

    With --json one object a line, without the event itself. The other commands take the number in the first column.
    """
    run(_list(Config.from_env(**options), as_json))


@dead_letters.command(epilog=EXIT_CODES)
@click.argument("number", type=click.IntRange(min=1))
@store_option
@_source
@state_dir_option
@as_json_option
def show(number: int, as_json: bool, **options: Any) -> None:
    """Print the event of dead letter NUMBER as it is in its source, and about it, on standard error, what is known.

    With --json one object, in which `event` is the event's text: it need not be JSON, that may be why it died.
    """
    run(_show(Config.from_env(**options), number, as_json))


@dead_letters.command(epilog=EXIT_CODES)
@_numbers
@_all
@store_option
@_source
@state_dir_option
@as_json_option
def resend(numbers: tuple[int, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Publish the events of the dead letters NUMBERS anew: each gets a new id, behind all others.

    What is longer than the hub took when the home last reached it is left alone: raise `max_event_bytes` on the hub,
    start the home once, and try again. An event that the hub refuses again becomes a dead letter again. Those of a
    source that is not ours can't be sent from here: its ids are not ours to give. Exit code 1: one was left alone.
    """
    _check_named(numbers, everything)
    run(_resend(Config.from_env(**options), numbers, everything, as_json))


@dead_letters.command(epilog=EXIT_CODES)
@_numbers
@_all
@store_option
@_source
@state_dir_option
@as_json_option
def drop(numbers: tuple[int, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Forget the dead letters NUMBERS. The tombstones that apps got stay; an event in the store stays there."""
    _check_named(numbers, everything)
    run(_drop(Config.from_env(**options), numbers, everything, as_json))


def _check_named(numbers: tuple[int, ...], everything: bool) -> None:
    if bool(numbers) == everything:
        raise click.UsageError("which? name their numbers (bridge-client dead-letters list shows them), or --all")


class _Opened(NamedTuple):
    letters: DeadLetters
    store: EventStore | None


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[_Opened]:
    """The letters, and our store if they are of one. Makes no file: where there is none, there are no letters."""
    async with AsyncExitStack() as stack:
        if not config.dead_letters_path.exists():
            yield _Opened(DeadLetters.in_memory(), None)
            return
        store = await stack.enter_async_context(app.open_store(config)) if config.source is None else None
        yield _Opened(await stack.enter_async_context(app.open_letters(config)), store)


async def _list(config: Config, as_json: bool) -> None:
    async with _opened(config) as opened:
        letters = await opened.letters.list()
    if not letters and not as_json:
        click.echo("no dead letters: every event found its way, or waits for it (bridge-client status)")
    for letter in letters:
        if as_json:
            click.echo(json.dumps(_facts(letter)))
        else:
            kind, session = letter.type or "no type", letter.session_id or "no session"
            parts = (letter.number, f"event {letter.event_id}", _time(letter.at), f"{letter.size} bytes", kind, session)
            click.echo(render.harmless("  ".join(map(str, (*parts, letter.reason)))))


async def _show(config: Config, number: int, as_json: bool) -> None:
    async with _opened(config) as opened:
        letter = await _get(opened.letters, number)
    if as_json:
        click.echo(json.dumps(_facts(letter) | {"event": letter.data.decode("utf-8", "replace")}))
        return
    place = "a tombstone is in its place" if letter.replaced else "it had no place any more, and no tombstone"
    told = f"event {letter.event_id} of epoch {letter.epoch}, given up {_time(letter.at)}: {letter.reason}; {place}"
    click.echo(render.harmless(told), err=True)
    sys.stdout.buffer.write(letter.data + b"\n")
    sys.stdout.buffer.flush()


async def _resend(config: Config, numbers: tuple[int, ...], everything: bool, as_json: bool) -> None:
    if config.source is not None:
        fail(
            f"these are events of {config.source}, which alone gives ids: publish them there once more, in a form that"
            " can travel (bridge-client dead-letters show NUMBER prints one)"
        )
    left = 0
    async with _opened(config) as opened:
        limit = await opened.letters.limit()
        for letter in await _named(opened.letters, numbers, everything):
            if opened.store is None:
                break
            if limit is not None and letter.size > limit:
                why = f"{letter.size} bytes, and the hub takes {limit}: raise max_event_bytes there and start this home"
                click.echo(f"number {letter.number} is left alone: {why}", err=True)
                left += 1
                continue
            try:
                stored = await opened.store.publish(plain_text(letter))
            except InvalidEvent as error:
                click.echo(f"number {letter.number} is left alone: {error}", err=True)
                left += 1
                continue
            await opened.letters.drop(letter.number)
            facts = {"number": letter.number, "event_id": str(stored.event_id)}
            say(f"number {letter.number} is event {stored.event_id} now", facts if as_json else None)
    if left:
        fail(f"{left} of them could not be sent anew")


async def _drop(config: Config, numbers: tuple[int, ...], everything: bool, as_json: bool) -> None:
    async with _opened(config) as opened:
        for letter in await _named(opened.letters, numbers, everything):
            await opened.letters.drop(letter.number)
            say(f"number {letter.number} is dropped", {"number": letter.number} if as_json else None)


async def _named(letters: DeadLetters, numbers: tuple[int, ...], everything: bool) -> list[Letter]:
    """Those meant, before any of them is touched."""
    return await letters.list() if everything else [await _get(letters, number) for number in dict.fromkeys(numbers)]


async def _get(letters: DeadLetters, number: int) -> Letter:
    letter = await letters.get(number)
    if letter is None:
        fail(f"there is no dead letter {number}; bridge-client dead-letters list shows which there are")
    return letter


def _facts(letter: Letter) -> dict[str, Any]:
    return {
        "number": letter.number,
        "event_id": str(letter.event_id),
        "epoch": letter.epoch,
        "at": _time(letter.at),
        "reason": letter.reason,
        "type": letter.type,
        "session_id": letter.session_id,
        "bytes": letter.size,
        "tombstone": letter.replaced,
    }


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
