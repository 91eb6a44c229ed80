"""The documentation as a site: `make docs` (docs/README.md says how the pages are ordered; the sidebar follows it).

The source folder is the repository, because pages link to files anywhere in it. Sphinx checks every link between pages, anchors included.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent

project = "Penstock"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
html_title = f"Penstock {version}"
copyright = "the authors of Penstock; Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**", "changes/README.md", "tests/README.md"]
exclude_patterns = [".*", "build", "dist", "test-artefacts", "**/__pycache__"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure", "myst.header"]  # programs with `…`; pages of release notes begin at any level

html_theme = "furo"  # brings its own files: the site needs no network
html_copy_source = html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

_ITEM = re.compile(r"\]\(([^)#]+\.md)\)")
_LINK = re.compile(r"\[([^]]+)\]\(([^)#:]+)\)")
_PUBLIC = re.compile(r"```\{public\} (\S+)\n(.*?)```", re.DOTALL)


def _reference(_app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the blocks `{public} MODULE` by the docstrings of the module's public names. The lines of a block are prefixes of the modules
    that define them; `*` stands for the names of no other block, so the reference is always complete."""
    if page.startswith("docs/reference/"):
        source[0] = _PUBLIC.sub(lambda block: _documented(importlib.import_module(block[1]), block[2].split()), source[0])


def _documented(module: ModuleType, prefixes: list[str]) -> str:
    origins = {name: f"{getattr(getattr(module, name), '__module__', '')}." for name in sorted(module.__all__) if name != "serdes"}
    blocks = [block for page in (ROOT / "docs/reference").glob("*.md") for block in _PUBLIC.findall(page.read_text())]
    elsewhere = tuple(f"penstock.{prefix}." for of, lines in blocks for prefix in lines.split() if of == module.__name__)
    lines = [f".. currentmodule:: {module.__name__}", ""]
    for prefix in prefixes:
        for name, origin in origins.items():
            if not origin.startswith(elsewhere) if prefix == "*" else origin.startswith(f"penstock.{prefix}."):
                value = getattr(module, name)
                kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else "py:data"
                lines += [f".. {kind}:: {name}", *([f"   :type: {type(value).__name__}"] if kind == "py:data" else []), ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _sidebar(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give each README below docs/ a table of contents of the pages that it links to: those of its folder, and the READMEs of others."""
    path = ROOT / f"{page}.md"
    if path.name != "README.md" or path.parent.name not in ("docs", "cookbook", "decisions", "reference"):
        return
    seen: set[str] = set()
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        links = [link for link in _ITEM.findall(section) if "/" not in link or link.endswith("/README.md") or link.startswith("../")]
        links = [link for link in dict.fromkeys(links) if link not in seen and not (path.parent.name != "docs" and link.startswith("../"))]
        seen.update(links)
        if links:
            caption = section.splitlines()[0].strip()
            options = [":hidden:"] if caption.startswith("# ") else [":hidden:", f":caption: {caption}"]
            source[0] += "\n\n```{toctree}\n" + "\n".join([*options, "", *(link.removesuffix(".md") for link in links)]) + "\n```\n"


def _folders(_app: Sphinx, page: str, source: list[str]) -> None:
    """Show links to folders of the repository as text: a site has no pages of them."""
    folder = (ROOT / page).parent
    source[0] = _LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], source[0])


def _restructured(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Turn a docstring, whose code is in single backquotes, into reStructuredText."""
    text = re.sub(r"(?<![`\\:])`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", lambda code: "``" + " ".join(code[1].split()) + "``", "\n".join(lines))
    parts = re.split(r"(``.*?``)", text)
    parts[::2] = [re.sub(r"([*|_])", r"\\\1", part) for part in parts[::2]]
    lines[:] = "".join(parts).split("\n")


def _home(app: Sphinx, error: Exception | None) -> None:
    """Let the folder of the site open at its first page."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "index.html").write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    app.connect("source-read", _sidebar)
    app.connect("source-read", _folders)
    app.connect("source-read", _reference)
    app.connect("autodoc-process-docstring", _restructured)
    app.connect("build-finished", _home)
