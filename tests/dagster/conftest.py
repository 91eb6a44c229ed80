"""Fixtures for the tests of the control plane and of the tables: a project with one application, on a real broker, with its own home; a
Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.assets.spark.session.session import spark_session
from penstock.orchestration.declarations.spark_settings import SparkSettings
from tests.dagster.telling import Project, project_on
from tests.support import Kafka, quick_spark


@pytest.fixture
def project(tmp_path: Path, broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Yield an application with two instances. Its processes are killed after the test."""
    with project_on(broker, tmp_path, monkeypatch) as project:
        yield project


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
