"""What `penstock status` says of an instance of which nothing is left but the wish that it runs, or does not."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from orchestration.cli import app
from orchestration.observer import Observer, Picture
from runtime.coordination.records import Desired


@pytest.mark.parametrize(
    ("wanted", "ago_s", "said", "status"), [(True, 3600, "gone", 1), (True, 1, "starting", 1), (False, 3600, "stopped", 0)]
)
def test_an_instance_that_was_buried_or_drained_has_been_started_once(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, ago_s: int, said: str, status: int
) -> None:
    """The others delete what a dead instance, or one that has left, last said of itself."""
    wish = Desired(instance="a-1", running=wanted, at_ms=int((time.time() - ago_s) * 1000), by="ann")
    monkeypatch.setattr(Observer, "look", lambda self: Picture("a", {}, {"a-1": wish}, {}, None))
    found = CliRunner().invoke(app, ["status", "-b", "x:1", "-a", "a"])
    assert said in found.output and found.exit_code == status
