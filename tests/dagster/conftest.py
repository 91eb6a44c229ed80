"""Fixtures of the tests of the control plane and of the tables: a project of one application, on a real broker, with a home of its own; a
session of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from assets.spark.session import spark_session
from orchestration.applications import Applications
from orchestration.control_plane import ControlPlane
from orchestration.operations import Operations
from orchestration.places import Places, default_database_url
from orchestration.spark_settings import SparkSettings
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, unique


@pytest.fixture
def project(tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """An application with two instances. Its processes are ended when the test is over."""
    application = unique("app")
    path = tmp_path / "streams.toml"
    path.write_text(STREAMS_TOML.format(application=application, bootstrap_servers=broker.bootstrap_servers))
    home = tmp_path / "home"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_TEST_APPLICATION", application)
    places = Places(tmp_path, home, path, default_database_url(home))
    operations = Operations(places, Applications.read(path), ControlPlane(places.database_url))
    yield Project(operations, broker)
    for name in operations.launcher.known():
        operations.launcher.stop(name, 5.0, kill=True)
    operations.control_plane.close()


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One session for all: the JVM of a process outlives its sessions, so one that was begun without Delta's jars would know no Delta."""
    os.environ["TZ"] = "UTC"  # Spark's rows come in the time of the machine
    session = spark_session(SparkSettings(master="local[2]", driver_memory="1g", delta=True))
    yield session
    session.stop()
