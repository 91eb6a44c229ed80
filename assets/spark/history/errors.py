"""Error of a history run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.assets.spark.session.explained import SPARK_ERRORS, explained
from penstock.orchestration.declarations.errors import ExpectedError
from penstock.orchestration.declarations.spark_settings import SparkSettings
from penstock.runtime.model.errors import DeserializationError, ProcessingError

_GOES_ON = "with one that pauses, --rejected URI keeps such records in a table and goes on"
_DECIDES = {
    DeserializationError.__name__: f" (deserialization.exception.handler decides about such records; {_GOES_ON})",
    ProcessingError.__name__: f" (processing.exception.handler decides about such records; {_GOES_ON})",
}
"""The way out of an error of the engine, by its class: the end of its message."""


class HistoryError(ExpectedError):
    """The run is refused, or has failed; the message names the object and the reason. No seed was written."""


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark into a HistoryError about `what`."""
    try:
        yield
    except SPARK_ERRORS as error:
        text = explained(error, SparkSettings())
        kind, _, rest = text.partition(": ")
        if kind.startswith("penstock."):
            text = f"{rest}{_DECIDES.get(kind.rpartition('.')[2], '')}"
        raise HistoryError(text if text.startswith(f"{what}: ") else f"{what}: {text}") from error
