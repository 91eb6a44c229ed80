"""Explanations of Spark's errors: the relevant line out of pages of Java, and the remedy."""

from __future__ import annotations

import platform
import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.model.user_errors import text_of

SPARK_ERRORS = (PySparkException, Py4JError)
"""Errors that Spark raises here: PySpark converts only some of the JVM's."""
_LONGEST = 2_000


def explained(error: BaseException, settings: SparkSettings) -> str:
    """Return the message of an error raised by Spark, with the setting to change if that is known."""
    text = text_of(error) or type(error).__name__
    for pattern, explanation in _KNOWN:
        found = re.search(pattern, text)
        if found:
            words = {
                "place": settings.place,
                "python": settings.python or "the one of the driver",
                "version": ".".join(platform.python_version_tuple()[:2]),
                "driver_memory": settings.driver_memory or "Spark's default",
                "executor_memory": settings.executor_memory or "Spark's default",
                "driver_host": settings.driver_host or "the one that Spark found",
            }
            return explanation.format(*(group or "" for group in found.groups()), **words)
    return _without_java(text)


_KNOWN = [
    (
        r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE:",
        "{0}",
    ),
    (
        r"Illegal Parquet type: INT64 \(TIMESTAMP\(NANOS",
        "a column has timestamps in nanoseconds, which Spark does not read from Parquet: write it in microseconds (pandas: "
        "to_parquet(…, coerce_timestamps='us', allow_truncated_timestamps=True))",
    ),
    (
        r"\[DELTA_TABLE_ONLY_OPERATION\] (`[^`]+` is not a Delta table)",
        "{0}",
    ),
    (
        r"\[UNABLE_TO_INFER_SCHEMA\] Unable to infer schema for (\w+)",
        "there is no file of format {0} at its location",
    ),
    (
        r"\[PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? ",
        "{0} does not exist",
    ),
    (
        r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (.+?)\.\s",
        "the file {0} was removed while it was read",
    ),
    (
        r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (.+?)\.\s[\s\S]*Caused by: [\w.$]+: ([^\n]+)",
        "the file {0} cannot be read: {1}",
    ),
    (
        r"\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (.+?)\.\s",
        "the file {0} cannot be read: it is damaged, or of another format",
    ),
    (
        r"PYTHON_VERSION_MISMATCH\]\s*Python in worker has different version:? ([\d.]+)",
        "the executors run Python {0}, this is {version}: PySpark needs the same minor version on both. Name one that is {version} on the "
        "executors and here with [spark] python (now {python})",
    ),
    (
        r'Cannot run program "([^"]*)"[^\n]*No such file',
        "there is no {0} on the executors: name their Python with [spark] python, a name or a path that is right there and here",
    ),
    (
        r"(?:ModuleNotFoundError|ImportError): (No module named '[^']*')",
        "the executors' Python lacks a module ({0}). Modules of yours travel with [spark] packages; what has compiled parts must be "
        "installed there: pip install 'penstock[spark]'",
    ),
    (
        r"InvalidClassException: ([\w.$]+); local class incompatible",
        "{place} runs another version of Spark than this PySpark ({0} differs): the versions must be the same",
    ),
    (
        r"All masters are unresponsive",
        "no master answers at {place}, or it runs another version of Spark",
    ),
    (
        r"Cannot call methods on a stopped SparkContext",
        "Spark gave up at {place}: what answers there is no master of this version of Spark, or it sent this application away",
    ),
    (
        r"Master removed our application|Max number of executor failures",
        "the executors ended right after their start, again and again. Most often they cannot reach the driver ([spark] driver-host, now "
        "{driver_host}), or no worker has so much memory ([spark] executor-memory, now {executor_memory})",
    ),
    (
        r"Failed to find data source: (kafka|delta)",
        "Spark at {place} has no {0} connector: its jars did not arrive (a server of Spark Connect must be started with them)",
    ),
    (
        r"(Topic|Group|Cluster)AuthorizationException: ([^\n]*)",
        "the brokers do not let Spark's Kafka connector read ({1}). It needs Read on each topic that it reads. "
        "`penstock doctor APP --role spark` names each right that is missing, `penstock acls APP --role spark` prints what grants it",
    ),
    (
        r"java\.lang\.OutOfMemoryError: ([^\n]*)",
        "Spark ran out of memory ({0}): [spark] driver-memory is {driver_memory}, executor-memory {executor_memory}",
    ),
    (
        r"Answer from Java side is empty|Py4JNetworkError|An error occurred while trying to connect to the Java server",
        "Spark's JVM ended in the middle of the work, most often because the system ran out of memory: [spark] driver-memory is "
        "{driver_memory}; the end of its log says more (in Dagster, it is the run's stderr)",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "no space is left on a disk that Spark writes to ({place}): that of its temporary files, or that of the table",
    ),
]


def _without_java(text: str) -> str:
    """Return the message without the JVM's stack; for an error that a Python worker reported, its last line."""
    ours = re.findall(r"^(?:pyspark\.errors\.[\w.]+|[A-Za-z_][\w.]*(?:Error|Exception)): .+$", text, re.MULTILINE)
    cut = re.split(r"\n\s*(?:at [\w.$]+\(|JVM stacktrace:|Driver stacktrace:)", text)[0].strip()
    if "Traceback (most recent call last)" in cut and ours:
        return str(ours[-1])
    return cut if len(cut) <= _LONGEST else f"{cut[:_LONGEST]} …"
