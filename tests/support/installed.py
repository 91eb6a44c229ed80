"""Penstock as users install it: built from a copy of the repository, in a separate virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import ROOT

PROJECT = {
    "assets/__init__.py": """
        import dagster as dg

        @dg.asset
        def report() -> int:
            return 7
        """,
    "sensors/__init__.py": """
        import dagster as dg

        @dg.sensor(asset_selection=["report"], minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
        def orders(context: dg.SensorEvaluationContext) -> dg.SkipReason:
            return dg.SkipReason("no orders")
        """,
    "runtime/__init__.py": """
        from penstock import Consumed, Materialized, Produced, StreamsBuilder, Topology, serdes

        def build() -> Topology:
            builder = StreamsBuilder()
            orders = builder.stream("orders", Consumed(key=serdes.STRING, value=serdes.STRING))
            orders.group_by_key().count(materialized=Materialized("counts")).to_stream().to("counts", Produced(value=serdes.LONG))
            return builder.build()
        """,
    "definitions.py": """
        import dagster as dg
        from assets import report
        from penstock.dagster import definitions
        from sensors import orders

        defs = dg.Definitions.merge(definitions("streams.toml"), dg.Definitions(assets=[report], sensors=[orders]))
        """,
    "streams.toml": """
        [applications.shop]
        factory = "runtime:build"
        instances = ["shop-1"]
        """,
}
"""A user's project whose own packages are named like folders of the repository."""


def copy_of_the_repository(folder: Path) -> Path:
    """Copy the files that Git tracks, and links as links: a build leaves its own files beside its sources."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_symlink() or source.is_file():  # not if deleted and not yet committed
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel with the tools of this environment."""
    _build("wheel", source, folder)
    (wheel,) = folder.glob("penstock-*.whl")
    return wheel


def build_sdist(source: Path, folder: Path) -> Path:
    """Build a source distribution and unpack it; return the unpacked folder."""
    _build("sdist", source, folder)
    (archive,) = folder.glob("penstock-*.tar.gz")
    shutil.unpack_archive(archive, folder)
    return folder / archive.name.removesuffix(".tar.gz")


def distributions(*extras: str) -> dict[str, Distribution]:
    """Return what `pip install penstock[extras]` brings beside Penstock, as it is installed in this environment, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, Distribution] = {}
    wanted = [(Requirement(line), "") for line in project["dependencies"]]
    wanted += [(Requirement(line), "") for extra in extras for line in project["optional-dependencies"][extra]]
    seen: set[str] = set()
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "penstock":
            wanted += [(Requirement(line), "") for each in requirement.extras for line in project["optional-dependencies"][each]]
            continue
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = canonicalize_name(requirement.name)
        found[name] = distribution(name)
        wanted += [(Requirement(line), each) for line in found[name].requires or [] for each in ("", *requirement.extras)]
    return found


def size(installed: Distribution) -> int:
    """Return the bytes of a distribution's files, without what Python compiles of them."""
    return sum(file.size or 0 for file in installed.files or [])


def install(folder: Path, *what: str, extras: Sequence[str] = ("all",)) -> Path:
    """Create a virtual environment with Penstock, and what these extras bring, alone; return its interpreter.

    The dependencies are links to the files of this environment, since installing some gigabytes again would take minutes.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for installed in distributions(*extras).values():
        for file in installed.files or []:
            if ".." not in file.parts:  # programs, which their modules replace here
                link = packages / file
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.locate())
    uv = str(Path(sys.executable).with_name("uv"))
    options = ["--quiet", "--offline", "--no-cache", "--no-config", "--no-deps", "--no-build-isolation"]
    _succeed([uv, "pip", "install", "--python", str(folder), *options, *what])
    return folder / "bin" / "python"


def users_project(folder: Path) -> Path:
    """Write `PROJECT`."""
    for name, text in PROJECT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix("        ") for line in text.strip("\n").split("\n")) + "\n")
    return folder


def run(python: Path, project: Path, program: str) -> str:
    """Run a program in the user's project; return its output."""
    return _succeed([str(python), "-c", program], project)


def users_environment(**more: str) -> dict[str, str]:
    """Return the environment without the variables that point from the user's project to this repository or its environment."""
    ours = ("PENSTOCK_", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def _build(what: str, source: Path, folder: Path) -> None:
    program = f"import setuptools.build_meta; setuptools.build_meta.build_{what}({str(folder)!r})"
    _succeed([sys.executable, "-c", program], source)


def _succeed(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=users_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
