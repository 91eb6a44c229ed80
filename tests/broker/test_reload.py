"""`penstock dev --reload`: an edit restarts the running instances; an error in it is shown, and they continue."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.instances import reloading
from penstock.orchestration.instances.operations import Operations
from penstock.runtime.instance.successor import SUCCESSOR
from tests.support import PATIENCE, ROOT, Kafka, unique, wait_until

CODE = """
from penstock import StreamsBuilder, serdes

def build():
    builder = StreamsBuilder()
    words = builder.stream("{input}", key=serdes.STRING, value=serdes.STRING)
    words.map_values(lambda value: "first " + value).to("{output}", key=serdes.STRING, value=serdes.STRING)
    return builder.build()
"""
HOLD = """
import atexit, pathlib, sys, time

def hold():
    while pathlib.Path("held").exists() and "{held}" in " ".join(sys.argv):
        time.sleep(0.1)

atexit.register(hold)
"""
WATCHER_MODULE = "penstock.orchestration.instances.reloading"
WATCHER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', 'penstock.orchestration.instances.reloading']))"


@pytest.mark.broker
def test_an_edit_reaches_the_running_stream_and_an_error_does_not(tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_STREAMS", "PENSTOCK_HOME", "PENSTOCK_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    application, source, target = unique("app"), broker.create_topic("in", 1), broker.create_topic("out", 1)
    code = CODE.format(input=source, output=target)
    (tmp_path / "shop.py").write_text(code)
    config = f'[applications.{application}.config]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
    streams_toml = tmp_path / "streams.toml"
    streams_toml.write_text(f'[applications.{application}]\nfactory = "shop:build"\ninstances = 1\n{config}')
    home = tmp_path / ".penstock"
    paths = ProjectPaths(tmp_path, home, streams_toml, default_database_url(home))
    operations = Operations(paths, Applications.read(streams_toml), ControlPlane(paths.database_url))
    name, log = f"{application}-1", tmp_path / "reload.log"

    def shows(value: str, wanted: str) -> None:
        broker.produce(source, [(b"key", value.encode())])
        wait_until(lambda: wanted.encode() in [record.value for record in broker.consume(target)], 60, wanted)

    def said(text: str) -> None:
        wait_until(lambda: text in log.read_text(), 60, f"{text!r} in the watcher's output")

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:  # its parent is a process that can be ended, as the one of penstock dev
        parent = subprocess.Popen([sys.executable, "-c", WATCHER], cwd=tmp_path, env=environment, stderr=output)
    try:
        operations.start(name, actor="test")
        first = operations.launcher.running(name)
        said("restarting instances when code in")
        shows("a", "first a")

        (tmp_path / "shop.py").write_text(code.replace('"first " + value', '"first " + ) value'))
        said(f"the new code of {application} does not start; still on the previous code: {name}\n- ")
        assert f"SyntaxError: unmatched ')' ({tmp_path / 'shop.py'}, line 7)" in log.read_text()
        shows("b", "first b")
        (tmp_path / "test_shop.py").write_text("")
        assert operations.launcher.running(name) == first, "neither the error nor a file that is not imported has restarted it"

        (tmp_path / "shop.py").write_text(code.replace('"first " + value', '"other " + value[0]'))
        said(f"{name} runs the new code")
        shows("c", "other c")
        second = operations.launcher.running(name)
        assert second is not None and second != first
        assert SUCCESSOR in psutil.Process(second.pid).cmdline(), "it was prepared, and took the place of the first"
        broker.produce(source, [(b"key", b"")])
        wait_until(lambda: operations.launcher.running(name) is None, 60, "its death of a record without a first character")
        (tmp_path / "shop.py").write_text(code.replace("first", "third"))
        wait_until(lambda: log.read_text().count(f"{name} runs the new code") == 2, 60, "its start with the corrected code")
        shows("d", "third d")
        third = operations.launcher.running(name)
        assert third is not None
        wait_until(lambda: len(_processes(tmp_path, SUCCESSOR)) == 1, 60, "a successor of the third")
        parent.kill()
        wait_until(lambda: not _processes(tmp_path, WATCHER_MODULE), 60, "the end of the watcher after its parent's")
        assert _processes(tmp_path, SUCCESSOR) == [] and third.alive, "the watcher leaves no successor, and the instance continues"
    finally:
        parent.kill()
        parent.wait()
        operations.launcher.stop(name, 5.0, kill=True)
        operations.control_plane.close()


@pytest.mark.broker
def test_an_instance_that_does_not_end_is_named_and_the_others_are_replaced(
    tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PENSTOCK_STREAMS", "PENSTOCK_HOME", "PENSTOCK_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reloading, "STOP_SECONDS", 5.0 * PATIENCE)
    application = unique("app")
    first, second = f"{application}-1", f"{application}-2"
    code = CODE.format(input=broker.create_topic("in", 1), output=broker.create_topic("out", 1)) + HOLD.format(held=f"{second}.json")
    (tmp_path / "shop.py").write_text(code)
    config = f'[applications.{application}.config]\n"bootstrap.servers" = "{broker.bootstrap_servers}"\n'
    (tmp_path / "streams.toml").write_text(f'[applications.{application}]\nfactory = "shop:build"\ninstances = 2\n{config}')
    operations, said = Operations.find(), list[str]()
    try:
        with closing(reloading.Reloader(operations.paths, said.append)) as reloader:
            before = {name: operations.start(name, actor="test").process for name in (first, second)}
            reloader.prepare()
            (tmp_path / "held").touch()
            (tmp_path / "shop.py").write_text(code.replace("first", "other"))
            reloader.reload()
            assert len(said) == 2, said
            assert said[0].startswith(f"instance {second} (process {before[second].pid}) is still closing after ")
            assert said[1].startswith(f"{first} runs the new code")
            assert operations.launcher.running(second) == before[second]
            now = operations.launcher.running(first)
            assert now is not None and now != before[first]
        assert _processes(tmp_path, SUCCESSOR) == [now.pid], "the successor that was not needed has ended"
    finally:
        (tmp_path / "held").unlink(missing_ok=True)
        for name in (first, second):
            operations.launcher.stop(name, 10.0, kill=True)
        operations.control_plane.close()


def _processes(folder: Path, argument: str) -> list[int]:
    """Return the processes in this folder that have the argument."""
    found = psutil.process_iter(["cmdline", "cwd"])
    return [process.pid for process in found if argument in (process.info["cmdline"] or []) and process.info["cwd"] == str(folder)]
