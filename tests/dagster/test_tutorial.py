"""The tutorials do what they say, from an empty folder, with a real broker, Dagster, Spark and a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dagster.tutorial import HISTORY, PAGE, Change, Command, File, Picture, Reader, steps


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [PAGE, HISTORY], ids=lambda page: page.stem)
def test_the_commands_of_the_tutorial_print_what_it_says(page: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "empty").mkdir()
    reader = Reader(folder, tmp_path)
    try:
        reader.follow(page)
    finally:
        reader.close()


def test_its_pictures_are_small() -> None:
    sizes = {step.name: (PAGE.parent / step.name).stat().st_size for step in steps(PAGE.read_text()) if isinstance(step, Picture)}
    assert sizes
    assert max(sizes.values()) < 150_000, sizes


def test_a_page_is_read_as_files_commands_and_pictures() -> None:
    page = "Write `shop/topology.py`:\n\n```python\nx = 1\n```\n\n```console\n$ ls\na\n…\nb … c\n$ pwd\n```\n\n![seen](seen.png)\n"
    file, listing, other, picture = steps(page)
    assert (file, other, picture) == (File("shop/topology.py", "x = 1\n"), Command("pwd", ""), Picture("seen.png"))
    assert isinstance(listing, Command)
    assert listing.matches("a\nx\ny\nb 1 c\n")
    assert listing.matches("a\nb  1 \t c")
    assert not listing.matches("a\nb 1 d\n")
    assert not listing.matches("a\nb 1 c\nmore\n")


def test_a_change_fits_one_place() -> None:
    (change,) = steps("In `a.py`:\n\n```diff\n def f():\n-    return 1\n+    return 2\n@@\n+y = 2\n z = 3\n```\n")
    assert isinstance(change, Change)
    assert change.apply("def f():\n    return 1\n\nz = 3\n") == "def f():\n    return 2\n\ny = 2\nz = 3\n"
    with pytest.raises(AssertionError, match="0 times"):
        change.apply("z = 3\n")
