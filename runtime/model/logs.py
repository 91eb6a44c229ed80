"""Structured logs: one JSON object per line, with application, instance and task, so that a task's lines can be searched.

    {"at": "2013-01-01T05:15:00.123Z", "level": "ERROR", "logger": "penstock.runtime.tasks.active", "message": "…",
     "application": "flight-board", "instance": "flight-board-1", "task": "0_3", "error": "Traceback …"}

The library itself only calls `logging.getLogger(__name__)`, so a program that embeds it keeps its own logging. `configure` is for
Penstock's own processes: instances, `penstock run`, the other commands (docs/logging.md).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec

from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.user_errors import writable

FORMAT, LEVEL = "PENSTOCK_LOG_FORMAT", "PENSTOCK_LOG_LEVEL"
"""Environment variables of `Output.of`."""

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.CRITICAL}
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


class TextFormatter(logging.Formatter):
    """Formatter for people: time, level, logger, message, and the task if the message is about one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        task = getattr(record, "task", None)
        return writable(text if task is None else f"{text} (task {task})")


@dataclass(frozen=True, slots=True)
class Output:
    """Form and levels of a process's log. `levels`: by logger; the root's is under ""."""

    json: bool = True
    levels: Mapping[str, int] = field(default_factory=lambda: {"": logging.INFO})

    @classmethod
    def of(
        cls,
        form: str | None = None,
        levels: str | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        terminal: bool = False,
        level: int = logging.INFO,
    ) -> Output:
        """Return the given form and levels, else those of the environment, else JSON (text on a `terminal`) and `level`. Raises
        StreamsConfigError.

        `levels` are those of the root and of loggers, separated by commas: `INFO`, or `WARNING,penstock.runtime.kafka=DEBUG`.
        """
        form = form or environment.get(FORMAT) or ("text" if terminal else "json")
        if form not in ("json", "text"):
            raise StreamsConfigError(f"log format {form!r} ({FORMAT}) is not known: json or text")
        found = {"": level}
        for part in filter(None, (part.strip() for part in (levels or environment.get(LEVEL) or "").split(","))):
            name, _, text = part.rpartition("=")
            number = _LEVELS.get(text.strip().upper())
            if number is None:
                raise StreamsConfigError(f"log level {part!r} ({LEVEL}) is not known: {', '.join(_LEVELS)}, or LOGGER=LEVEL")
            found[name.strip()] = number
        return cls(form == "json", found)


def configure(log_path: Path | None, *, fields: Mapping[str, str] = _EMPTY, output: Output | None = None) -> None:
    """Send this process's logs, with these `fields` if they are JSON, to `log_path` (appended; its folder is created) or to standard error.
    Replaces existing handlers of the root logger."""
    output = output or Output()
    handler: logging.Handler
    if log_path is None:
        handler = logging.StreamHandler()
    else:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(log_path, encoding="utf-8")
    handler.setFormatter(JsonFormatter(fields) if output.json else TextFormatter())
    logging.getLogger().handlers[:] = [handler]
    for name, level in output.levels.items():
        logging.getLogger(name).setLevel(level)
