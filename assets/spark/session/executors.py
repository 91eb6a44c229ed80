"""Requirements on a cluster's executors, checked before the first job: the same Python version, and the packages that cannot be sent.

Without this check, a missing package is an ImportError at the end of a page of Java, in the middle of a job.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.assets.spark.session.explained import SPARK_ERRORS, explained
from penstock.orchestration.declarations.spark_settings import SparkSettings, WrongSparkError

NEEDED = ("penstock.assets.spark.source.state_source",)
"""Modules that a scan of state imports on executors."""
_PARTITIONS = 4
_FIELDS = "host STRING, python STRING, executable STRING, missing STRING"


def look(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Run on an executor: return one row about its Python."""
    for _ in batches:
        missing = ""
        for module in NEEDED:
            try:
                importlib.import_module(module)
            except ImportError as error:
                missing = str(error)
        row = {"host": platform.node(), "python": platform.python_version(), "executable": sys.executable, "missing": missing}
        yield pa.RecordBatch.from_pylist([row])


def require_executors(session: SparkSession, settings: SparkSettings) -> None:
    """Check the Python of some executors, if there are any. Raises WrongSparkError that names the host and what is missing."""
    if settings.is_local:
        return
    try:
        rows = session.range(0, _PARTITIONS, 1, _PARTITIONS).mapInArrow(look, _FIELDS).collect()
    except SPARK_ERRORS as error:
        raise WrongSparkError(explained(error, settings)) from error
    for row in rows:
        if row.missing:
            raise WrongSparkError(
                f"the executor on {row.host} cannot run the state source: {row.missing} (Python {row.python}, {row.executable}). "
                "Packages with compiled parts do not travel: install 'penstock[spark]' there, or name another Python with [spark] python"
            )
