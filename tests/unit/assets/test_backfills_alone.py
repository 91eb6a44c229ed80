"""The process of a backfill: one of an application at a time on a machine, and the settings with which it starts Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer

from penstock.assets.spark.history import command
from penstock.assets.spark.history.command import alone
from penstock.assets.spark.seeds.job import SeedError
from penstock.orchestration.declarations.backfills import FORMATS, BackfillInput, BackfillRequest
from penstock.orchestration.declarations.spark_settings import SparkSettings, WrongSparkError


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


def test_spark_is_started_with_what_it_needs_for_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads Delta only if it is started with its jars."""
    (tmp_path / "streams.toml").write_text(
        '[applications.flights]\nfactory = "tests.support.history:counts"\ninstances = 1\n'
        '[applications.flights.config]\n"bootstrap.servers" = "nowhere:9"\n'
    )
    monkeypatch.setenv("PENSTOCK_STREAMS", str(tmp_path / "streams.toml"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    started: list[bool] = []

    def refuse(settings: SparkSettings) -> None:
        started.append(settings.delta)
        raise WrongSparkError("there is no Spark here")

    monkeypatch.setattr(command, "spark_session", refuse)
    monkeypatch.setattr(command, "_spark_logs_to_file", lambda request: tmp_path / "log")
    for kind in FORMATS:
        request = BackfillRequest(application="flights", inputs={"in": BackfillInput("/in", kind)}, until="latest", seed=str(tmp_path))
        with pytest.raises(typer.Exit):
            command.main(msgspec.json.encode(request).decode())
    assert started == [False, True]
