"""What a model reads through the home stays under one folder, and within bounds."""

import os
from pathlib import Path
from typing import Any

import pytest

from bridge_client.runners.tools import MAX_ENTRIES, MAX_FILE, ListFiles, ReadFile, Tool, ToolFailed


async def result(tool: Tool, **given: Any) -> str:
    return "".join([piece async for piece in tool.run(given)])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("print('ä')\n")
    (tmp_path / "secret").write_text("s3cret")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    (root / "in").symlink_to("src/a.py")
    return root


async def test_a_file_is_read_also_through_a_link_that_stays_inside(project: Path) -> None:
    for path in ("src/a.py", "./src/../src/a.py", "in", str(project / "src/a.py")):
        assert await result(ReadFile(project), path=path) == "print('ä')\n"


@pytest.mark.parametrize("path", ["../secret", "out", "up/secret", "src/../../secret", "/etc/passwd", "up"])
async def test_nothing_outside_is_reached(project: Path, path: str) -> None:
    for tool in (ReadFile(project), ListFiles(project)):
        with pytest.raises(ToolFailed, match="outside the project's folder"):
            await result(tool, path=path)


@pytest.mark.parametrize("path", [None, "", 7, "a\0b", ["src"], "nothing", "src/a.py/x", "x" * 5000])
async def test_what_is_no_path_is_refused_in_words(project: Path, path: object) -> None:
    with pytest.raises(ToolFailed):
        await result(ReadFile(project), path=path)


async def test_only_regular_files_are_read_and_a_pipe_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    for path in ("pipe", "src"):
        with pytest.raises(ToolFailed, match=r"regular file|directory"):
            await result(ReadFile(project), path=path)


async def test_a_long_file_comes_in_parts(project: Path) -> None:
    (project / "long").write_bytes(b"a" * MAX_FILE + b"the end")
    first = await result(ReadFile(project), path="long")
    assert first.endswith(f"[7 more bytes; go on with offset {MAX_FILE}]")
    assert await result(ReadFile(project), path="long", offset=MAX_FILE) == "the end"
    assert await result(ReadFile(project), path="long", offset=1 << 40) == ""
    for odd in (-1, "0", True, 1.5, 1 << 80):
        with pytest.raises(ToolFailed, match="offset"):
            await result(ReadFile(project), path="long", offset=odd)


async def test_a_folder_is_listed_within_bounds(project: Path) -> None:
    assert await result(ListFiles(project), path=".") == "in\nout\nsrc/\nup\n"
    many = project / "many"
    many.mkdir()
    for number in range(MAX_ENTRIES + 5):
        (many / str(number)).touch()
    listed = (await result(ListFiles(project), path="many")).splitlines()
    assert (len(listed), listed[-1][:9]) == (MAX_ENTRIES + 1, "[more tha")
