"""Error of a history run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from penstock.assets.spark.session.explained import explained
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.spark_settings import SparkSettings


class HistoryError(ExpectedError):
    """The run is refused, or has failed; the message names the object and the reason. No seed was written."""


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark into a HistoryError about `what`."""
    try:
        yield
    except PySparkException as error:
        text = explained(error, SparkSettings()).removeprefix(f"{HistoryError.__module__}.{HistoryError.__qualname__}: ")
        raise HistoryError(f"{what}: {text}") from error
