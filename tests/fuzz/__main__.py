"""Search for minutes: python -m tests.fuzz --help"""

import importlib.util
import re
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import click

from tests.fuzz.mutate import inputs
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".fuzz"

INPUT_SECONDS = 10
INPUT_BYTES = 20_000
MEMORY_MIB = 1024

_PROGRESS = re.compile(r"^#(\d+)\t\w+ +cov: (\d+) .*?corp: (\d+)/\S+.*?exec/s: (\d+)")


def seeded(target: Target) -> Path:
    """The folder of a target's inputs: its seeds, and what earlier runs found worth keeping."""
    folder = WORK / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    return folder


def dictionary(target: Target) -> Path:
    """The target's tokens as libFuzzer reads them."""
    path = WORK / f"{target.name}.dict"
    escaped = ("".join(f"\\x{byte:02x}" for byte in token) for token in target.tokens)
    path.write_text("".join(f'"{text}"\n' for text in escaped))
    return path


def guided(target: Target, seconds: int) -> bool:
    """Run a target under libFuzzer; whether it held."""
    folder, finds = seeded(target), WORK / "finds"
    finds.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "tests.fuzz.coverage_guided", target.name, str(folder)),
        *(f"-dict={dictionary(target)}", f"-artifact_prefix={finds}/{target.name}-", f"-max_total_time={seconds}"),
        *(f"-timeout={INPUT_SECONDS}", f"-max_len={INPUT_BYTES}", f"-rss_limit_mb={MEMORY_MIB}", "-len_control=20"),
    ]
    tail: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        shown = "starting"
        for line in process.stdout:
            tail = [*tail, line][-60:]
            if found := _PROGRESS.match(line):
                shown = f"{int(found[1]):>9,} inputs  {found[2]:>5} branches  {found[3]:>4} kept  {found[4]:>6}/s"
                _show(target, shown)
        code = process.wait()
    _show(target, f"{shown}  {'held' if code == 0 else 'BROKE'}", last=True)
    if code:
        click.echo("".join(line for line in tail if not _PROGRESS.match(line)))
    return code == 0


def unguided(target: Target, seconds: int) -> bool:
    """Run a target on edited seeds, other ones each time; whether it held."""
    end, count = time.monotonic() + seconds, 0
    for data in inputs(target, seed=time.time_ns()):
        if time.monotonic() > end:
            break
        count += 1
        if count % 256 == 0:
            _show(target, f"{count:>9,} inputs")
        try:
            target.run(data)
        except Exception as error:
            path = WORK / "finds" / f"{target.name}-{sha256(data).hexdigest()[:16]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            _show(target, f"{count:>9,} inputs  BROKE", last=True)
            click.echo(f"{type(error).__name__}: {error}\nthe input is in {path.relative_to(ROOT)}")
            return False
    _show(target, f"{count:>9,} inputs  held", last=True)
    return True


def _show(target: Target, text: str, *, last: bool = False) -> None:
    if sys.stdout.isatty():
        click.echo(f"\r{target.name:<16}{text}\x1b[K", nl=last)
    elif last:
        click.echo(f"{target.name:<16}{text}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.IntRange(1), default=600, show_default=True, help="For all targets together.")
@click.option("--target", "names", multiple=True, type=click.Choice(list(TARGETS)), help="Only this one; repeatable.")
@click.option("--replay", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run one input again.")
def main(seconds: int, names: tuple[str, ...], replay: Path | None) -> None:
    """Hand strange input to everything that reads what strangers send, and stop at what breaks.

    With atheris the search is guided by coverage and keeps what it learns in .fuzz/; without it the seeds are edited
    by chance. What breaks is kept in .fuzz/finds; --replay runs it again, with --target or by its file's name.
    """
    targets = [TARGETS[name] for name in names] or list(TARGETS.values())
    if replay is not None:
        by_name = [target for target in TARGETS.values() if replay.name.startswith(f"{target.name}-")]
        chosen = targets if names else by_name
        if len(chosen) != 1:
            raise click.UsageError(f"which target does {replay.name} belong to? Say so with --target")
        chosen[0].run(replay.read_bytes())
        click.echo(f"{chosen[0].name} held")
        return
    search = guided if importlib.util.find_spec("atheris") else unguided
    if search is unguided:
        click.echo("atheris is not installed here: the search is not guided by coverage")
    each = max(1, seconds // len(targets))
    click.echo(f"{len(targets)} targets, {each} s each")
    held = [search(target, each) for target in targets]
    sys.exit(not all(held))


if __name__ == "__main__":
    main(prog_name="python -m tests.fuzz")
