"""A run and its real Spark process: no damage to messages makes a run fail whose work is done."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.spark_jobs import Done, Work, run

pytestmark = pytest.mark.spark


def test_half_lines_and_a_jvm_that_dies_fail_no_run_whose_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = tmp_path / "streams.toml"
    toml.write_text('[spark]\ndriver-memory = "600m"\n')
    monkeypatch.setenv("PENSTOCK_STREAMS", str(toml))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    with dg.DagsterInstance.ephemeral() as instance:
        result, done = run("talk", Work(str(tmp_path)), instance)
        logged = [record.user_message for record in instance.all_logs(result.run_id)]
    assert result.success and done == [Done(1, [])]
    assert [line for line in logged if line in ("before", "in pièces", "after")] == ["before", "in pièces", "after"]
