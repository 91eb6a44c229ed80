"""The claims of README.md, each with what holds it. Those that need a broker, Dagster or Spark are held by other tests, which `ELSEWHERE`
names; that Penstock runs on macOS is held by none."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import typer
import yaml
from typer.testing import CliRunner

from benchmarks import run
from examples.flight_board.data import FLIGHTS_IN_ALL
from penstock.orchestration.cli import app
from penstock.orchestration.embedded.jars import read_lock
from tests.support import ALL_EXAMPLES, ROOT, script_as_module

README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip() and not line.startswith("git clone")
]
PLAIN = {"COLUMNS": "200", "TERM": "dumb"}
ELSEWHERE = {
    "`make demo ARGS=--once` exits after the comparison; its status is 0 only if every step succeeded": "tests/dagster/test_demo.py",
    "leaves no process behind": "tests/dagster/test_demo.py",
    "a record that cannot be read pauses one task": "tests/broker/test_pause.py",
    "no record is lost or counted twice": "tests/chaos/test_rounds.py",
    "An instance keeps running when Dagster stops, and Dagster restarts an instance that dies": "tests/dagster/test_instances.py",
    "in one process, bound to the loopback interface": "tests/broker/test_embedded.py",
    "they restore their tasks' state first, then take over without a stop": "tests/dagster/test_scaling.py",
    "copies all state while the application runs": "tests/broker/test_application_snapshots.py",
    "starts an application with state that Spark has computed from years of history": "tests/dagster/test_spark_seed.py",
    "on a cluster, Kubernetes or Spark Connect": "tests/dagster/test_spark_cluster.py",
    "`its module ensurepip is missing`": "tests/unit/repository/test_build_env.py",
    "if the machine has no Java, the one among the Python packages is used": "tests/unit/orchestration/test_java.py",
    "depends on Kafka and RocksDB alone": "tests/unit/repository/test_import_direction.py",
    "every row is compared with the result that pandas computes": "tests/dagster/test_demo.py",
    "the table recovers, and its alert is resolved": "tests/dagster/test_demo.py",
    "check it, then replace one instance after the other": "tests/dagster/test_deploy.py",
    "from Kafka alone (docs/board.md)": "tests/dagster/test_board.py",
    "Plain Dagster works too, at the top of the repository and without `DAGSTER_HOME`": "tests/dagster/test_new_project.py",
    "reads a key from the instance that has it": "tests/broker/test_fleet_queries.py",
    "each `[[tables]]` entry of `streams.toml` is an asset": "tests/dagster/test_tables.py",
    "makes a project that works at once": "tests/dagster/test_new_project.py",
    "`penstock` reads the nearest one, in the current folder or above it": "tests/unit/orchestration/test_project_paths.py",
    "The project may have packages named `assets`, `sensors` or `runtime`": "tests/dagster/test_installed.py",
    "merge Penstock's definitions into its own": "tests/dagster/test_installed.py",
    "In a project of `dg`, a component does the same": "tests/dagster/test_installed.py",
    "## A topology, without a broker": "tests/cases/test_readme.py",
    "The engine needs no JVM": "tests/unit/repository/test_packaging.py::test_the_engine_and_the_test_driver_run_on_the_core_alone",
    "The demo keeps running, with Dagster's UI, until Ctrl-C": "tests/dagster/test_demo.py::test_ctrl_c_in_the_middle_leaves_no_process",
    "returns at once and processes in the background": "tests/broker/test_broker_not_there_yet.py::"
    "test_a_start_waits_at_each_of_its_requests_and_continues",
    "stop the client, skip the record, or pause the record's task": "tests/broker/test_handlers.py",
    "lists paused tasks and `streams.resume(task_id)` resumes one": "tests/broker/test_pause.py::"
    "test_resume_without_a_shift_meets_the_record_again",
    "wanted and running instances, and tasks that no instance runs": "tests/unit/orchestration/test_idle_tasks.py::"
    "test_the_reason_is_what_the_task_waits_for",
    "open alerts, each with the next command": "tests/dagster/test_commands.py::"
    "test_an_alert_is_shown_with_the_bad_record_and_what_to_type_acknowledged_commented_and_resolved",
    "close the instances cleanly; their state is kept": "tests/dagster/test_instances.py::test_a_stopped_instance_stays_stopped",
    "all with --dry-run": "tests/dagster/test_run_books.py::test_a_dry_run_says_what_would_be_done_and_changes_nothing",
    "exports it to a path or URI": "tests/broker/test_application_snapshots.py::test_the_instances_export_what_they_have",
    "and shows what differs": "tests/dagster/test_rehearsals.py::test_a_build_is_compared_with_the_one_that_runs",
    "the stream goes on from there": "tests/dagster/test_spark_history.py::"
    "test_a_stream_that_starts_with_the_seed_of_its_history_is_the_stream_of_the_whole",
    "a typed topology with its test, sample records, `streams.toml`, Dagster definitions, a Dockerfile": "tests/unit/orchestration/"
    "test_init_command.py::test_a_new_project_passes_its_own_tests_under_its_own_name",
    "`--from-examples fraud` or `orders`": "tests/unit/orchestration/test_init_command.py::"
    "test_a_new_project_passes_its_own_tests_under_its_own_name",
    "`penstock where` shows every folder": "tests/unit/orchestration/test_project_paths.py::test_where_shows_each_path_and_why",
    "State, logs and the database are kept in `.penstock/` beside `streams.toml`": "tests/unit/orchestration/test_project_paths.py::"
    "test_the_nearest_streams_toml_upwards_is_the_project_and_its_files_are_beside_it",
}


PYTHONS = script_as_module("quick-tests-on-every-python")


@pytest.mark.parametrize(("claim", "test"), ELSEWHERE.items())
def test_a_claim_that_is_held_elsewhere_is_in_the_readme_and_its_test_is_there(claim: str, test: str) -> None:
    assert claim in re.sub(r"\s+", " ", README)
    file, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text()


# -- Pythons --------------------------------------------------------------------------------------------------------------------


def test_the_pythons_that_are_claimed_are_those_that_are_built_on_and_tested() -> None:
    assert "Python 3.11, 3.12 or 3.13 with" in README
    assert PYTHONS.CLAIMED == ("3.11", "3.12", "3.13")
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "scripts" / "build-env").read_text()
    assert 'requires-python = ">=3.11,<3.14"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^test:.* pythons", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def interpreter(path: Path, version: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {version}\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PYENV_ROOT", "ASDF_DATA_DIR", "MISE_DATA_DIR", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


@pytest.mark.parametrize(
    "place",
    [
        ".pyenv/versions/3.97.2/bin/python3.97",
        ".asdf/installs/python/3.97.0/bin/python3.97",
        ".local/share/mise/installs/python/3.97/bin/python3.97",
        ".local/share/uv/python/cpython-3.97.1-linux-x86_64-gnu/bin/python3.97",
    ],
)
def test_pythons_of_version_managers_are_found_also_behind_a_name_that_stands_for_none(home: Path, place: str) -> None:
    interpreter(home / "shims" / "python3.97", "pyenv: python3.97: command not found", 127)
    assert PYTHONS.find("3.97") is None
    found = interpreter(home / "home" / place, "3.97")
    assert PYTHONS.find("3.97") == found


def test_a_python_on_the_path_is_taken_if_it_is_what_its_name_says(home: Path) -> None:
    own = interpreter(home / "shims" / "python3.97", "3.97")
    assert PYTHONS.find("3.97") == own
    own.write_text("#!/bin/sh\necho 3.96\n")
    assert PYTHONS.find("3.97") is None


def test_a_python_that_is_not_here_is_named_and_one_that_fails_fails_all(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = "{}.{}".format(*sys.version_info)
    interpreter(home / "shims" / "python3.97", "3.97")
    monkeypatch.setattr(PYTHONS, "CLAIMED", (here, "3.97", "3.98"))
    monkeypatch.setattr(sys, "argv", ["quick-tests-on-every-python"])
    results = iter([True, False])
    monkeypatch.setattr(PYTHONS, "tested", lambda *_: next(results))
    assert [PYTHONS.main(), PYTHONS.main()] == [0, 1]
    said = capsys.readouterr().out
    assert said.count("Python 3.98: not on this machine, nothing was run") == 2
    assert said.count("Python 3.97: passed") == said.count("Python 3.97: FAILED") == 1


# -- commands, folders, numbers ---------------------------------------------------------------------------------------------------


def test_the_commands_are_there() -> None:
    programs = {shlex.split(command)[0] for command in COMMANDS}
    assert (
        programs == {"make", ".venv/bin/dagster", ".venv/bin/penstock", ".venv/bin/python", "penstock", "pip", "pytest", "python"}
        and len(COMMANDS) > 15
    )


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("make")])
def test_a_target_of_make_is_there(command: str) -> None:
    done = subprocess.run(["make", "-n", *shlex.split(command)[1:2]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith((".venv/bin/penstock", "penstock "))])
def test_a_command_takes_what_it_is_given(command: str) -> None:
    words = shlex.split(command.split(" -- ")[0])[1:]  # behind it stand another program's
    names = [word for word in words[:2] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    for depth in (2, 1):
        done = CliRunner().invoke(app, [*names[:depth], "--help"], env=PLAIN)
        if done.exit_code == 0 and f" {' '.join(names[:depth])} " in done.output.replace("\n", " "):
            break
    assert done.exit_code == 0, done.output
    for option in (word for word in words if word.startswith("--") and len(word) > 2 and word != "--help"):
        assert option in done.output


def test_each_run_book_has_a_dry_run_and_the_commands_are_explained_where_the_readme_says() -> None:
    listed = CliRunner().invoke(app, ["run-book", "--help"], env=PLAIN).output
    books = set(re.findall(r"^│ ([a-z][a-z-]+)  ", listed, re.MULTILINE))
    assert len(books) > 5
    explained = (ROOT / "docs" / "control-plane.md").read_text()
    for name in sorted(books - {"approve", "reject"}):
        assert "--dry-run" in CliRunner().invoke(app, ["run-book", name, "--help"], env=PLAIN).output, name
        assert name in explained
    used = {shlex.split(command)[1] for command in COMMANDS if command.startswith(".venv/bin/penstock ")}
    assert {name for name in used - {"broker"} if not re.search(rf"`(?:penstock )?[^`\n]*\b{name}\b", explained)} == set()


def test_dagster_keeps_its_runs_where_the_readme_says() -> None:
    assert "`dagster.yaml` keeps its runs in `.penstock/dagster`" in re.sub(r"\s+", " ", README)
    settings = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    assert settings["storage"]["sqlite"]["base_dir"] == settings["local_artifact_storage"]["config"]["base_dir"] == ".penstock/dagster"


def test_the_license_and_the_size_of_the_jars() -> None:
    assert "Apache License 2.0" in README and "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    (megabytes,) = re.findall(r"downloads jars \((\d+) MB\)", README)
    assert sum(jar.size for jar in read_lock("kafka")) / 1e6 == pytest.approx(float(megabytes), abs=0.5)


def test_programs_of_python_are_there() -> None:
    modules = re.findall(r"\.venv/bin/python -m (\S+)", README)
    assert modules and all(importlib.util.find_spec(name) for name in modules)


def test_each_folder_is_in_the_table() -> None:
    folders = set(re.findall(r"`(\w+)/`", README[README.index("## Where things are") : README.index("State, logs and the database")]))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    there = {path.split("/")[0] for path in tracked.splitlines() if "/" in path and not path.startswith(".")}
    assert there - folders == {"tests", "scripts"}, "of those CONTRIBUTING.md speaks"
    assert folders <= there


def test_numbers_match_the_sources() -> None:
    assert f"{FLIGHTS_IN_ALL:,} real departures" in README
    versions = {jar.name for jar in read_lock("kafka") if jar.name.startswith("kafka-clients")}
    assert versions == {"kafka-clients-4.3.1.jar"} and "Apache Kafka 4.3.1" in README
    rounds = (ROOT / "tests" / "chaos" / "__main__.py").read_text()
    assert "killed twenty times" in README and '"--rounds", type=int, default=20' in rounds


def test_the_speed_is_that_of_the_page_on_benchmarks() -> None:
    """thousand records/s, the ratios to the loop by hand, Kafka Streams and Quix Streams, and MiB."""
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = [line.replace("*", "").split("|") for line in measured.splitlines() if re.match(r"\| [a-z-]+-(eos|alo)[a-z-]* \|", line)]
    beside_java = [float(row[6]) for row in rows if len(row) > 15]
    assert len(beside_java) == 12
    slowest, fastest = re.findall(r"\(([\d.]+) to ([\d.]+) times Kafka Streams\)", README)[0]
    assert [min(beside_java), max(beside_java)] == pytest.approx([float(slowest), float(fastest)], abs=0.051)
    for workload, row in (("count-eos", "updates folded by the cache"), ("count-eos-nocache", "every update written")):
        own = [cell.strip() for cell in next(line for line in README.splitlines() if line.startswith(f"| {row} |")).split("|")[2:7]]
        cells = next(line for line in measured.splitlines() if line.startswith(f"| {workload} |")).replace("*", "").split("|")
        shown = [float(cells[place]) for place in (2, 4, 6, 8)]
        assert own[0] == f"{shown[0]:.0f}" and own[1] == f"{shown[1]:.2f}", (own, shown)
        assert own[4] == cells[13].strip()
        assert float(own[2]) == pytest.approx(shown[2], abs=0.05) and float(own[3]) == pytest.approx(shown[3], abs=0.6), (own, shown)


def test_the_options_of_the_benchmark_are_there() -> None:
    (arguments,) = re.findall(r'make bench ARGS="([^"]*)"', README)
    benchmark = typer.Typer()
    benchmark.command()(run.main)
    said = CliRunner().invoke(benchmark, ["--help"], env=PLAIN).output
    assert all(word in said for word in shlex.split(arguments) if word.startswith("--"))


@pytest.mark.skipif(not (ROOT / ".venv").samefile(sys.prefix), reason="the claim is about .venv")
def test_the_environment_is_as_large_as_is_said() -> None:
    (claimed,) = re.findall(r"builds \.venv \(([\d.]+) GB\)", README)
    assert f"about {claimed} GB" in (ROOT / "scripts" / "build-env").read_text()
    done = subprocess.run(["du", "-s", "-k", sys.prefix], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout.split()[0]) * 1024 / 1e9 == pytest.approx(float(claimed), rel=0.2)


def test_the_messages_of_the_table_of_troubles_are_said() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "orchestration").rglob("*.py")) + (ROOT / "scripts" / "build-env").read_text()
    said = re.findall(r"^\| `([^`]+)` \|", README[README.index("## If something") :], re.MULTILINE)
    assert len(said) == 4
    for message in said:
        for part in message.split("…"):
            assert part.strip().removeprefix("Port").removesuffix("process").strip() in sources, message
    assert "--kafka-port" in CliRunner().invoke(app, ["dev", "--help"], env=PLAIN).output


def test_make_nightly_tries_all_examples_of_property_tests_and_make_check_a_quarter() -> None:
    alone = {name: value for name, value in os.environ.items() if name != "EXAMPLES"}  # `make nightly` runs this test, too
    for target, profile, examples in (("nightly", "thorough", ALL_EXAMPLES), ("check", "penstock", ALL_EXAMPLES // 4)):
        made = subprocess.run(["make", "-n", target], cwd=ROOT, env=alone, capture_output=True, text=True, timeout=60, check=True)
        assert f"--hypothesis-profile={profile} tests/unit" in made.stdout
        assert hypothesis.settings.get_profile(profile).max_examples == examples


def test_make_clean_deletes_what_is_kept_and_leaves_the_environment(tmp_path: Path) -> None:
    """With instances and a broker ended before their folder goes."""
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for folder in (".penstock/broker", ".dagster", ".venv/bin", ".pytest_cache", "deep/__pycache__", "deep/source"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("python", "penstock"):
        (tmp_path / ".venv" / "bin" / name).write_text(f'#!/bin/sh\ntest -d .penstock/broker && echo {name} "$@" >> calls\n')
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".venv", "Makefile", "calls", "deep"] and [path.name for path in (tmp_path / "deep").iterdir()] == ["source"]
    calls = (tmp_path / "calls").read_text()
    assert "penstock stop --kill --timeout 20\n" in calls and "penstock broker stop\n" in calls
