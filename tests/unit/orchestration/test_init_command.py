"""`penstock init`: the project that it makes, and what it refuses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.orchestration.cli import app
from penstock.orchestration.commands.init import OUTPUTS, PROJECT
from penstock.orchestration.declarations.applications import Applications
from tests.support.installed import users_environment

TEMPLATES = tuple(OUTPUTS)


def init(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_project_passes_its_own_tests_under_its_own_name(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "Smart-Home"
    output = init(str(folder), *([] if template == PROJECT else ["--from-examples", template]))
    texts = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert texts.keys() > {"Dockerfile", "pyproject.toml", "README.md", "streams.toml", "smart_home/topology.py", "tests/test_topology.py"}
    assert f"{len(texts)} files written to {folder}" in output
    left = [name for name, text in texts.items() if "examples." in text or "examples/" in text or "penstock-project" in text]
    assert left == []
    (application,) = Applications.read(folder / "streams.toml").applications
    assert (application.id, application.factory) == ("Smart-Home", "smart_home.topology:build")
    for command in ("pip install -e '.[dev]'", "pytest", "penstock dev", "python -m smart_home.send", "penstock start"):
        assert command in output and command in texts["README.md"]
    assert f"--topic {OUTPUTS[template]} " in output and f"--topic {OUTPUTS[template]} " in texts["README.md"]
    assert "docker build -t smart-home ." in texts["Dockerfile"] and "kafka:9092 smart-home\n" in texts["Dockerfile"]
    assert texts["README.md"].startswith("# Smart-Home\n")
    environment = users_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # the plugins of this repository are not the project's
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout + tests.stderr


def test_a_folder_with_files_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    init(str(tmp_path / "shop"))  # an empty one is fine
    (tmp_path / "shop" / "README.md").write_text("mine")
    assert f"{tmp_path / 'shop'} is not empty: it has .dockerignore, .gitignore, Dockerfile and" in init(str(tmp_path / "shop"), status=1)
    assert (tmp_path / "shop" / "README.md").read_text() == "mine"
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is a file" in init(str(tmp_path / "file"), status=1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = init(str(tmp_path / "file" / "shop"), status=1)
    assert f"{tmp_path / 'file'}" in output and "cannot be written: Not a directory" in output


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2nd", "begins with a letter"),
        ("a b", "is not a name for a project"),
        ("shop-", "ends with a letter or a digit"),
        ("class", "'class', which is a word of the language Python"),
        ("Json", "'json', which is a module of Python's standard library"),
        ("tests", "'tests', which is the name of a folder that many projects have"),
        ("build", "'build', which is the name of a folder that many projects have"),
        ("my.shop", "is not a name for a project"),  # in `[applications.my.shop]` it would be two names
        ("PyYAML", "also the name of an installed distribution"),
        ("confluent_kafka", "'confluent_kafka', which is an installed package"),
        ("pyspark", "'pyspark', which is"),
        ("Penstock", "'penstock', which is an installed package"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, why: str, tmp_path: Path) -> None:
    assert why in init(str(tmp_path / name), status=1)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["dagster", "SQLAlchemy", "pytest", "dagster_webserver"])
def test_the_name_of_a_package_that_the_project_needs_is_refused_before_it_is_installed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_name: ())
    assert "also the name of a distribution that the project needs" in init(str(tmp_path / name), status=1)


def test_a_deleted_project_that_is_still_installed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "site" / "cold_store-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cold-store\nVersion: 0.1.0\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": (tmp_path / "cold-store").as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(tmp_path / "site")
    init(str(tmp_path / "cold-store"))
    assert "also the name of an installed distribution" in init(str(tmp_path / "elsewhere" / "cold-store"), status=1)


def send(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "shop.send", *arguments]
    done = subprocess.run(command, cwd=folder, env=users_environment(**environment), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_sample_records_go_to_the_brokers_of_the_declaration(tmp_path: Path) -> None:
    """None answers here; each message is one line, which says which brokers were meant."""
    folder = tmp_path / "shop"
    init(str(folder))
    program = folder / "shop" / "send.py"
    waits_long = program.read_text()
    program.write_text(waits_long.replace("timeout=10)", "timeout=0.5)"))
    assert program.read_text() != waits_long, "each of four calls waits ten seconds for brokers that never answer"
    (folder / ".penstock" / "broker").mkdir(parents=True)
    (folder / ".penstock" / "broker" / "lock").write_text('{"pid": 1, "port": 4}')  # as after `penstock dev --kafka-port 4`
    line = "Kafka at {}: Failed to get metadata: Local: Broker transport failure. Start it (penstock dev), or name other brokers with -b\n"
    assert send(folder) == (1, line.format("127.0.0.1:4"))
    assert send(folder, PENSTOCK_BOOTSTRAP_SERVERS="127.0.0.1:5") == (1, line.format("127.0.0.1:5"))
    assert send(folder, "-b", "127.0.0.1:6") == (1, line.format("127.0.0.1:6"))
    with (folder / "streams.toml").open("a") as file:
        file.write('"bootstrap.servers" = "${SHOP_BROKERS}"\n')
    assert send(folder, SHOP_BROKERS="127.0.0.1:7") == (1, line.format("127.0.0.1:7"))
    status, output = send(folder)
    assert status == 1 and "${SHOP_BROKERS} is not set in the environment" in output and output.count("\n") == 1
    (folder / "streams.toml").unlink()
    status, output = send(folder)
    assert status == 1 and output.startswith("There is no project here") and output.count("\n") == 1


def test_an_unknown_example_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    output = init(str(tmp_path / "shop"), "--from-examples", "order", status=1)
    assert "there is no example 'order'; the examples are fraud, orders. Did you mean 'orders'?" in output
    assert not (tmp_path / "shop").exists()
