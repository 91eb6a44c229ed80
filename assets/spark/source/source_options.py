"""Options of `penstock.state`: parsed and validated before anything is read. Errors name the valid choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, cast

FORMAT = "penstock.state"
OPTIONS = (
    "path", "application", "snapshot", "store", "tasks", "from-key", "to-key", "from-time", "to-time", "columns", "value-schema", "sample",
    "mode",
)  # fmt: skip
MODES = ("PERMISSIVE", "FAILFAST")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a read. Times are ms since the epoch, bounds inclusive; None: not given."""

    store: str
    path: str | None
    application: str | None
    snapshot: str | None
    tasks: frozenset[str]
    from_key: str | None
    to_key: str | None
    from_time: int | None
    to_time: int | None
    columns: tuple[str, ...] | None
    value_schema: str | None
    sample: int | None
    mode: Literal["PERMISSIVE", "FAILFAST"]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raise ValueError for an option that is unknown, missing, or of a wrong value."""
        given = {name.lower(): value for name, value in options.items()}
        for name in sorted(set(given) - set(OPTIONS)):
            raise ValueError(f"format {FORMAT!r} does not know the option {name!r}; its options are {', '.join(OPTIONS)}")
        if not given.get("store"):
            raise ValueError(f"format {FORMAT!r} needs the option 'store': the name of a store")
        path, application, snapshot = (given.get(name) or None for name in ("path", "application", "snapshot"))
        if snapshot is not None and "/" in snapshot:  # a location instead of an id
            if path is not None:
                raise ValueError(f"both the options 'path' and 'snapshot' name a place: {path} and {snapshot}")
            path, snapshot = snapshot, None
        if path is None and application is None:
            raise ValueError(
                f"format {FORMAT!r} needs the option 'application' or 'path': an application's id, or the folder or URI of a "
                "snapshot or of the snapshots of one application"
            )
        found = cls(
            store=given["store"],
            path=path,
            application=application,
            snapshot=snapshot,
            tasks=frozenset(_listed(given.get("tasks", ""))),
            from_key=given.get("from-key"),
            to_key=given.get("to-key"),
            from_time=_read(given, "from-time", read_time),
            to_time=_read(given, "to-time", read_time),
            columns=tuple(_listed(given["columns"])) if given.get("columns") else None,
            value_schema=given.get("value-schema"),
            sample=_read(given, "sample", _read_count),
            mode=_mode(given.get("mode", "PERMISSIVE")),
        )
        if found.from_time is not None and found.to_time is not None and found.from_time > found.to_time:
            raise ValueError(f"the option 'from-time' ({given['from-time']}) is later than 'to-time' ({given['to-time']})")
        return found


def read_time(text: str) -> int:
    """Parse a time to ms since the epoch: a number of ms, or ISO 8601, UTC unless it has an offset. Raises ValueError."""
    text = text.strip()
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("a time is ISO 8601 (2026-11-21T09:30:00Z) or milliseconds since the epoch") from error
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_count(text: str) -> int:
    if not text.strip().isdigit() or int(text) == 0:
        raise ValueError("it is a number of rows per task, from 1")
    return int(text)


def _read(given: Mapping[str, str], name: str, read: Callable[[str], int]) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"the option {name!r} cannot be {text!r}: {error}") from error


def _mode(text: str) -> Literal["PERMISSIVE", "FAILFAST"]:
    mode = text.upper()
    if mode == "DROPMALFORMED":
        raise ValueError(
            "the option 'mode' cannot be DROPMALFORMED: no row is dropped. Read as PERMISSIVE and filter by `_malformed IS NULL`"
        )
    if mode not in MODES:
        raise ValueError(f"the option 'mode' cannot be {text!r}; there are {' and '.join(MODES)}")
    return cast(Literal["PERMISSIVE", "FAILFAST"], mode)
