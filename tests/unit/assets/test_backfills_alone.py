"""One backfill of an application at a time on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.assets.spark.history.command import alone
from penstock.assets.spark.seeds.job import SeedError


def test_a_second_backfill_of_an_application_is_refused_while_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "streams.toml").write_text("")
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    with alone("flights"):
        with pytest.raises(SeedError, match="another backfill of flights runs on this machine"), alone("flights"):
            pass
        with alone("fraud"):
            pass
    with alone("flights"):
        pass
