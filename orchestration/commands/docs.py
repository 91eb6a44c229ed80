"""`penstock docs`: the pages of the documentation, which are installed with the package, so that messages can name them.

`orchestration/pages` is a link to `docs/`. The pages of the API reference are left out: their text is the docstrings, which `help()` shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.text import Text

from penstock.orchestration.commands.common import fail, out, table
from penstock.orchestration.declarations.unknown_names import did_you_mean

_SUFFIX = ".md"
_INDEX = "README"
_LEFT_OUT = ("reference",)


def docs(
    page: Annotated[str | None, typer.Argument(help="Name of a page, such as changing. Default: list all pages.")] = None,
) -> None:
    """Show a page of the documentation of this version, or list the pages.

    `penstock docs tutorial`
    """
    found = dict(_pages(files("penstock.orchestration") / "pages"))
    if page is None:
        shown = table("page", "title")
        for name, text in sorted(found.items()):
            shown.add_row(Text(name), Text(text.partition("\n")[0].lstrip("# ")))
        out.print(shown)
        return
    name = page.removeprefix("docs/").removesuffix(_SUFFIX)
    if name not in found:
        fail(f"there is no page {page!r}; `penstock docs` lists them{did_you_mean(name, found)}")
    if out.is_terminal:
        out.print(Markdown(found[name]), soft_wrap=False)
    else:
        typer.echo(found[name])


def _pages(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of each page and its text, those of folders too: `cookbook/joins`."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in _LEFT_OUT:
            yield from _pages(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            name = entry.name.removesuffix(_SUFFIX)
            yield prefix.rstrip("/") if name == _INDEX and prefix else prefix + name, entry.read_text(encoding="utf-8")
