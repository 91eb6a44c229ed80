"""Fixtures for the tests of the control plane and of the tables: a project with one application, on a real broker, with its own home; a
Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.database import ControlPlane
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths, default_database_url
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.orchestration.instances.operations import Operations
from tests.dagster.telling import STREAMS_TOML, Project
from tests.support import Kafka, quick_spark, unique


@pytest.fixture
def project(tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Yield an application with two instances. Its processes are killed after the test."""
    application = unique("app")
    path = tmp_path / "streams.toml"
    path.write_text(STREAMS_TOML.format(application=application, bootstrap_servers=broker.bootstrap_servers))
    home = tmp_path / "home"
    monkeypatch.setenv("PENSTOCK_STREAMS", str(path))
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.delenv("PENSTOCK_DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_TEST_APPLICATION", application)
    paths = ProjectPaths(tmp_path, home, path, default_database_url(home))
    operations = Operations(paths, Applications.read(path), ControlPlane(paths.database_url))
    yield Project(operations, broker)
    for name in operations.launcher.known():
        operations.launcher.stop(name, 5.0, kill=True)
    operations.control_plane.close()


@pytest.fixture(scope="package", autouse=True)
def _quick_spark() -> None:
    os.environ.update(quick_spark.environment())


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """Yield one session for all tests: a process has one JVM for all its sessions, so if the first lacked Delta's jars, all would."""
    os.environ["TZ"] = "UTC"  # Spark returns rows in the machine's time zone
    session = spark_session(SparkSettings(master="local[2]", driver_memory="1g", delta=True))
    yield session
    session.stop()
