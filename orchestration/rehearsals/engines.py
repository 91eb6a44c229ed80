"""Engine of a rehearsal or an audit: the engine's tasks in a process of this machine, or as the stages of a backfill on Spark."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from penstock.orchestration.declarations.rehearsal_limits import LOCAL, SPARK
from penstock.orchestration.declarations.spark_settings import SparkSettings, WrongSparkError
from penstock.orchestration.rehearsals.processes import RehearsalError

SPARK_RECORDS = 5_000_000
"""Records from which on a cluster is used, if nothing else is asked for. A process of this machine needs some minutes for them."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The chosen engine; as text, which one and why."""

    on_spark: bool
    text: str

    def __str__(self) -> str:
        return self.text

    def data(self) -> dict[str, object]:
        """Return it for JSON."""
        return {"name": SPARK if self.on_spark else LOCAL, "why": self.text}


def chosen_engine(asked: str, records: int, spark: SparkSettings, refusal: Callable[[], str | None]) -> Engine:
    """Return the engine. `asked`: one of `ENGINES`. `refusal` returns why Spark cannot do it, None if it can; it is called only if Spark
    would be used. Raises RehearsalError if Spark is asked for and cannot do it."""
    if asked == LOCAL:
        return Engine(False, "on this machine, as asked for")
    if asked != SPARK and records < SPARK_RECORDS:
        return Engine(False, f"on this machine: {records:,} records are fewer than {SPARK_RECORDS:,}, from which on a cluster is used")
    try:
        spark, why = spark.resolved(), None
    except WrongSparkError as error:
        why = str(error)
    if asked != SPARK and spark.is_local:
        return Engine(False, "on this machine: [spark] names no cluster, and here the engine alone needs less CPU time than Spark")
    why = why or _not_installed() or refusal()
    if asked == SPARK and why is not None:
        raise RehearsalError(f"it cannot be computed on Spark: {why}. --engine local computes it on this machine")
    if why is not None:
        return Engine(False, f"on this machine, because Spark cannot: {why}")
    reason = ", as asked for" if asked == SPARK else f": {records:,} records are at least {SPARK_RECORDS:,}"
    return Engine(True, f"on Spark at {spark.place}{reason}")


def _not_installed() -> str | None:
    return None if importlib.util.find_spec("pyspark") is not None else "PySpark is not installed (pip install 'penstock[spark]')"
