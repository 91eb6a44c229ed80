"""Structured logs: one JSON object per line, with application, instance and task, so that a task's lines can be searched.

    {"at": "2013-01-01T05:15:00.123Z", "level": "ERROR", "logger": "penstock.runtime.tasks.active", "message": "…",
     "application": "flight-board", "instance": "flight-board-1", "task": "0_3", "error": "Traceback …"}

The library itself only calls `logging.getLogger(__name__)`, so a program that embeds it keeps its own logging. `configure` is for
Penstock's own processes (`penstock.runtime.instance`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from penstock.runtime.model.user_errors import writable

_EMPTY: MappingProxyType[str, str] = MappingProxyType({})
_context: ContextVar[MappingProxyType[str, str]] = ContextVar("penstock_log_context", default=_EMPTY)


def bind(**fields: str) -> None:
    """Add fields (application, instance, …) to every line that this thread logs from now on."""
    _context.set(MappingProxyType({**_context.get(), **fields}))


class JsonFormatter(logging.Formatter):
    """Formatter of one line of JSON per record (see the module's docstring)."""

    def __init__(self, fields: Mapping[str, str] = _EMPTY) -> None:
        """`fields` are added to every line of every thread."""
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
        elif record.exc_text:  # from a worker's process, already formatted
            line["error"] = record.exc_text
        try:
            return msgspec.json.encode(line, enc_hook=repr).decode()
        except UnicodeEncodeError:
            shown = {name: writable(value) if isinstance(value, str) else value for name, value in line.items()}
            return msgspec.json.encode(shown, enc_hook=repr).decode()


def configure(log_path: Path | None, level: int = logging.INFO, fields: Mapping[str, str] = _EMPTY) -> None:
    """Send this process's logs, as JSON lines with these `fields`, to `log_path` (appended; its folder is created) or to standard error.
    Replaces existing handlers."""
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
