"""Progress display of an installation: a bar on a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

logger = logging.getLogger(__name__)

_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 5.0
_WIDTH = 30


class Progress:
    """Counter of records. `total` is an estimate; with `show`, a bar is drawn there."""

    def __init__(self, show: TextIO | None = None) -> None:
        self._show = show if show is not None and show.isatty() else None
        self._began = self._reported = time.monotonic()
        self._before = 0
        self.total = 0
        self.done = 0

    @classmethod
    def on_terminal(cls) -> Progress:
        return cls(sys.stderr)

    def begin(self, total: int, already: int = 0) -> None:
        """Begin. `already`: records written by an earlier attempt, which do not count for the rate."""
        self.total, self.done, self._before = total, already, already
        self._began = self._reported = time.monotonic()

    def add(self, records: int) -> None:
        self.done += records
        now = time.monotonic()
        if now - self._reported >= (_LOG_SECONDS if self._show is None else _TERMINAL_SECONDS):
            self._reported = now
            self._report()

    def end(self) -> None:
        """Finish, with the actual number as the total."""
        self.total = self.done
        if self._show is not None:
            self._report()
            self._show.write("\n")

    def _report(self) -> None:
        text = self.text(time.monotonic() - self._began)
        if self._show is None:
            logger.info("seed: %s", text)
        else:
            filled = round(self._part * _WIDTH)
            self._show.write(f"\r[{'#' * filled}{' ' * (_WIDTH - filled)}] {text}\x1b[K")
            self._show.flush()

    @property
    def _part(self) -> float:
        return min(1.0, self.done / self.total) if self.total else 1.0

    def text(self, seconds: float) -> str:
        """Return percentage, records, records per second and time left, after `seconds`."""
        rate = (self.done - self._before) / seconds if seconds > 0 else 0.0
        left = max(0, self.total - self.done) / rate if rate else 0.0
        minutes, rest = divmod(round(left), 60)
        return f"{self._part:.0%} · {self.done:,} of about {self.total:,} records · {rate:,.0f}/s · {minutes}:{rest:02d} left"
