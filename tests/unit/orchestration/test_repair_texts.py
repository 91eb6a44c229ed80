"""What `penstock rehearse --paused` says about the state with which the task began."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from penstock.orchestration.commands import rehearse
from penstock.orchestration.rehearsals.processes import Build
from penstock.orchestration.rehearsals.repair import Repair
from penstock.runtime.coordination.records import PausedAt
from penstock.runtime.model.ids import TaskId

REPAIR = Repair(
    application="climate",
    task=TaskId(0, 1),
    build=Build("new", "climate:build"),
    paused=PausedAt(topic="readings", partition=1, offset=324, error="JSON is malformed"),
    snapshot=None,
    stateless=False,
    records=1,
    rejected=(),
    written=0,
    outputs=(),
    changes=(),
)


@pytest.mark.parametrize("stateless", [False, True])
def test_only_a_task_with_stores_lacks_a_snapshot(
    stateless: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot never contains a task without stores: advice to take one would lead nowhere."""
    monkeypatch.setattr(rehearse, "rehearsed_repair", lambda *_, **__: dataclasses.replace(REPAIR, stateless=stateless))
    monkeypatch.setattr(rehearse, "ProjectPaths", SimpleNamespace(find=lambda: None))
    monkeypatch.setattr(rehearse, "Applications", SimpleNamespace(of=lambda paths: SimpleNamespace(named=lambda name: None)))
    rehearse._rehearse_repair("climate", TaskId(0, 1), None, 10, None, as_json=False)
    said = capsys.readouterr()
    assert "the record is processed" in said.out
    assert ("penstock snapshot take climate" in said.err) is not stateless
