"""Structured logs: one JSON object a line, each with application, instance and task, so that a search for a task finds all of it.

    {"at": "2013-01-01T05:15:00.123Z", "level": "ERROR", "logger": "runtime.tasks.active", "message": "…",
     "application": "flight-board", "instance": "flight-board-1", "task": "0_3", "error": "Traceback …"}

The library itself only calls `logging.getLogger(__name__)`; a program that embeds it keeps its own logging. `configure` is for
processes that are ours (`runtime.instance`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

_EMPTY: MappingProxyType[str, str] = MappingProxyType({})
_context: ContextVar[MappingProxyType[str, str]] = ContextVar("penstock_log_context", default=_EMPTY)


def bind(**fields: str) -> None:
    """Adds fields (application, instance, …) to every line logged by this thread from now on."""
    _context.set(MappingProxyType({**_context.get(), **fields}))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; see the module's docstring."""

    def __init__(self, fields: Mapping[str, str] = _EMPTY) -> None:
        """`fields` stand in each line, whichever thread it comes from."""
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **_context.get(),
        }
        task = getattr(record, "task", None)
        if task is not None:
            line["task"] = str(task)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        elif record.exc_text:  # of a worker's process
            line["error"] = record.exc_text
        return msgspec.json.encode(line, enc_hook=repr).decode()


def configure(log_path: Path | None, level: int = logging.INFO, fields: Mapping[str, str] = _EMPTY) -> None:
    """Sends this process's logs, as JSON lines with these `fields`, to `log_path` (appended, its folder is made) or to standard error.
    Replaces handlers."""
    handler: logging.Handler
    if log_path is None:
        handler = logging.StreamHandler()
    else:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(log_path, encoding="utf-8")
    handler.setFormatter(JsonFormatter(fields))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
