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
from penstock.runtime.instance.successor import await_turn
from penstock.runtime.topology.factory import build_topology

if await_turn():
    print(build_topology("application:build").describe())
"""


def test_the_topology_that_was_checked_is_the_one_that_runs(tmp_path: Path) -> None:
    """A second call of this factory would return other names, and with them other state."""
    (tmp_path / "application.py").write_text(APPLICATION)
    settings = InstanceSettings(application="app", instance="a", factory="application:build", config={})  # no broker is asked
    process = subprocess.run(
        [sys.executable, "-c", PROCESS], cwd=tmp_path, input=msgspec.json.encode(settings) + b"\n" + RUN, capture_output=True, check=True
    )
    found = msgspec.json.decode(process.stdout, type=Findings)
    assert [problem for problem in found.problems if "application.id" not in problem and "bootstrap.servers" not in problem] == []
    said = process.stderr.decode()
    assert said.count("the factory is called") == 1
    assert "KSTREAM-SINK-0000000001" in said


def test_a_successor_ends_with_the_process_that_prepared_it(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", PROCESS], cwd=tmp_path, input=b"", capture_output=True, check=True)
    assert (process.stdout, process.stderr) == (b"", b"")
