"""The process that is prepared to replace an instance. `tests/broker/test_reload.py` replaces running ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from penstock.runtime.instance.precheck import Findings
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.instance.successor import RUN

APPLICATION = """
from penstock import StreamsBuilder

builder = StreamsBuilder()

def build():
    print("the factory is called")
    builder.stream("in").to("out")
    return builder.build()
"""
PROCESS = """
import os, sys
from penstock.runtime.config.environment import BUILD
from penstock.runtime.instance import process
from penstock.runtime.instance.__main__ import main
from penstock.runtime.topology.factory import build_topology

class Client:
    def __init__(self, factory, config, log_path):
        print(build_topology(factory).describe())

    def run(self):
        print("build", os.environ[BUILD])
        return 0

process.KafkaStreams = Client
sys.exit(main(["--config", "instance.json", "--successor"]))
"""


def successor(folder: Path) -> subprocess.Popen[bytes]:
    """Start a successor whose client only shows its topology and the fingerprint of its code."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROCESS], cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)


def test_the_code_that_was_checked_is_the_code_that_runs(tmp_path: Path) -> None:
    """A second call of this factory would return other names, and with them other state. A file that is edited while the instance closes
    is not the code that runs: its fingerprint would hide the edit from the next reload."""
    (tmp_path / "application.py").write_text(APPLICATION)
    config: dict[str, str | int | float | bool] = {"bootstrap.servers": "${PENSTOCK_TEST_UNSET}"}  # a problem, so no broker is asked
    settings = InstanceSettings(application="app", instance="a", factory="application:build", config=config)
    (tmp_path / "instance.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(settings, config={})))
    with successor(tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        found = msgspec.json.decode(process.stdout.readline(), type=Findings)
        (tmp_path / "application.py").write_text(APPLICATION.replace("out", "other"))
        process.stdin.write(RUN)
        process.stdin.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0
    assert [problem for problem in found.problems if "PENSTOCK_TEST_UNSET" not in problem] == []
    assert said.count("the factory is called") == 1
    assert "KSTREAM-SINK-0000000001" in said
    assert f"build {found.builds['a']}" in said


def test_a_successor_ends_with_the_process_that_prepared_it(tmp_path: Path) -> None:
    with successor(tmp_path) as process:
        said, _ = process.communicate(b"")
    assert (process.returncode, said) == (0, b"")
