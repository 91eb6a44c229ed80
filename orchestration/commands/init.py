"""`penstock init`: a new project, from the files in `orchestration/templates`.

The templates are the folders of `examples/`, through links, so what is copied is code that the linters, the type checkers and the tests of
this repository see. `project` is a whole project; the other examples replace its topology, its samples and its test. In the copies,
`examples.<name>` becomes the project's package, and `penstock-project` its name.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

PROJECT, PROJECT_NAME = "project", "penstock-project"
OUTPUTS = {PROJECT: "rooms", "fraud": "alerts", "orders": "bills"}
"""The templates, with the topic that shows the results of each."""
_EXAMPLES = [name for name in OUTPUTS if name != PROJECT]
_PACKAGE_FILES = ("__init__.py", "topology.py", "samples.py", "send.py", "definitions.py", "defs/__init__.py")
_TEST = "test_topology.py"
_FILES = ("pyproject.toml", "README.md", "streams.toml", ".gitignore", "Dockerfile", ".dockerignore")
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?")  # of a distribution, of an application, of topics, of a TOML table
_OWN = ("tests", "test", "examples", "build", "dist", "docs")
"""Names that the project's package cannot have, besides those of installed packages."""
_DEVELOPMENT = "pytest"
"""Package that a project needs beside Penstock and its extras."""


class WrongProjectError(Exception):
    """The project cannot be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class NewProject:
    """A project to be made in `folder`, which is also its name."""

    folder: Path
    example: str = PROJECT

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def package(self) -> str:
        """Name of the Python package: the project's, in lower case, with underscores."""
        return re.sub(r"-+", "_", self.name).lower()

    @property
    def image(self) -> str:
        """Name of the container's image, which Docker wants in lower case, with separators one by one."""
        return re.sub(r"_+", "_", self.name).lower()

    def check(self) -> None:
        """Raise WrongProjectError unless the project can be made here under its name."""
        if self.example not in OUTPUTS:
            nearest = difflib.get_close_matches(self.example, _EXAMPLES, 1)
            meant = f". Did you mean {nearest[0]!r}?" if nearest else ""
            raise WrongProjectError(f"there is no example {self.example!r}; the examples are {', '.join(_EXAMPLES)}{meant}")
        if not _NAME.fullmatch(self.name):
            raise WrongProjectError(
                f"{self.name!r} is not a name for a project: it has letters, digits, '-' and '_', at most 100, begins with a letter "
                "and ends with a letter or a digit"
            )
        if taken := self._taken():
            raise WrongProjectError(
                f"the package of a project {self.name!r} would be {self.package!r}, which is {taken}: choose another name"
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise WrongProjectError(f"{self.folder} is a file")
        if self.folder.is_dir() and (found := sorted(path.name for path in self.folder.iterdir())):
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise WrongProjectError(
                f"{self.folder} is not empty: it has {', '.join(found[:3])}{more}. Choose another name, or delete the folder first"
            )

    def _taken(self) -> str | None:
        if keyword.iskeyword(self.package):
            return "a word of the language Python"
        if self.package in sys.stdlib_module_names:
            return "a module of Python's standard library"
        if self.package in _OWN:
            return "the name of a folder that many projects have"
        spec = importlib.util.find_spec(self.package)
        if spec is not None and spec.origin is not None and self.folder not in Path(spec.origin).parents:
            return f"an installed package ({spec.origin})"
        # Installing the project would replace a distribution of its name, also one whose package has another: PyYAML is `yaml`.
        distribution = _normalized(self.name)
        if distribution in (_DEVELOPMENT, *map(_normalized, importlib.metadata.requires("penstock") or [])):
            return "also the name of a distribution that the project needs"
        for installed in importlib.metadata.distributions(name=distribution):
            if self.folder.as_uri() not in (installed.read_text("direct_url.json") or ""):
                return "also the name of an installed distribution"
        return None

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the path of each file in the project, and its text."""
        templates = files("penstock.orchestration") / "templates"
        common, own = templates / PROJECT, templates / self.example
        for name in _FILES:
            yield name, self._text(common / name)
        for name in _PACKAGE_FILES:
            yield f"{self.package}/{name}", self._text(own / name if (own / name).is_file() else common / name)
        yield f"tests/{_TEST}", self._text(own / _TEST)

    def _text(self, template: Traversable) -> str:
        text = template.read_text(encoding="utf-8")
        text = re.sub(rf"\bexamples([./])(?:{PROJECT}|{self.example})\b", self.package, text)
        text = re.sub(rf"(docker build -t |kafka:9092 ){PROJECT_NAME}\b", rf"\1{self.image}", text)
        return text.replace(PROJECT_NAME, self.name).replace(f"--topic {OUTPUTS[PROJECT]} ", f"--topic {OUTPUTS[self.example]} ")

    def write(self) -> int:
        """Write the files; return how many. Raises OSError."""
        written = 0
        for name, text in self.files():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:  # never over another file
                file.write(text)
            written += 1
        return written


def _normalized(requirement: str) -> str:
    """Return the normalized name of the distribution that a requirement names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The project and its folder; or `.`, the current folder if it is empty.")],
    from_examples: Annotated[
        str,
        typer.Option("--from-examples", metavar="EXAMPLE", show_default=False, help=f"Begin with an example: {' or '.join(_EXAMPLES)}."),
    ] = PROJECT,
) -> None:
    """Make a project: a typed topology with its test, sample records, `streams.toml`, Dagster definitions, a Dockerfile.

    `penstock init shop` makes the folder `shop` with the package `shop`, and prints the next commands. It never writes into a folder that
    has files.

    `--from-examples fraud`: sums over windows, a join of two streams, a global table.

    `--from-examples orders`: a join by foreign key, a versioned table (prices as of an order's time), results once a minute (suppress).
    """
    project = NewProject(name.expanduser().resolve(), from_examples)
    try:
        project.check()
        written = project.write()
    except WrongProjectError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or project.folder} cannot be written: {error.strerror}. Give the path of a folder that you may write to")
    typer.secho(f"{written} files written to {project.folder}", err=True)
    typer.echo("\nNext:\n")
    if project.folder != Path.cwd():
        typer.echo(f"  cd {shlex.quote(str(name))}")
    for command, what in _next(project):
        typer.echo(f"  {command:<40} # {what}" if what else f"  {command}")
    typer.echo("\nREADME.md says more.")


def _fail(message: str) -> NoReturn:
    typer.secho(message, fg=typer.colors.RED, err=True)
    raise typer.Exit(1)


def _next(project: NewProject) -> Iterator[tuple[str, str]]:
    yield "pip install -e '.[dev]'", "this project, Penstock's control plane, Kafka, pytest"
    yield "pytest", "the topology, without a broker"
    yield "penstock dev", "Kafka, and Dagster's UI; leave it running"
    yield f"python -m {project.package}.send", "in another terminal: topics and sample records"
    yield "penstock start", "start the instances"
    yield f"penstock broker tool kafka-console-consumer -- --topic {OUTPUTS[project.example]} --from-beginning", ""
