"""Dagster Pipes between a run and its child process through files, in which only complete lines count.

Dagster's own reader takes the text after the last newline for a message, even while the writer is still writing it, and stops working
then. Its writer passes a long line to the system in parts, between which another thread may write. Here a line is written at once, and
read when its newline is there. An unreadable line causes a warning on the run's stderr, and the lines after it are read.

The answer is not a message. It has a file of its own, which appears only when it is complete, so no log line can fail work that is
already done.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import dagster as dg
from dagster_pipes import PipesMessage, PipesMessageWriter, PipesMessageWriterChannel, PipesParams

MESSAGES, ANSWER = "messages", "answer"
"""Files in the folder of a run's messages."""
_FOLDER = "folder"
_POLL_SECONDS = 0.05
_PIECE = 1 << 20
_SHOWN = 200
_log = logging.getLogger(__name__)


class LineWriter(PipesMessageWriterChannel):
    """Writer of one message per line, from any thread. A message that cannot be written goes to standard error: the work that it reports
    on continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._torn = False
        """True while the file ends with an incomplete line."""

    def write_message(self, message: PipesMessage) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._write(line)
        except OSError as error:
            sys.stderr.write(f"a message to the run is lost ({error}): {line.decode()}")

    def _write(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            rest = b"\n" + line if self._torn else line
            while rest:
                self._torn = True
                rest = rest[os.write(file, rest) :]
            self._torn = False
        finally:
            os.close(file)


class FolderWriter(PipesMessageWriter[LineWriter]):
    """Child's side: writes into the folder that `FolderReader` names."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @contextmanager
    def open(self, params: PipesParams) -> Iterator[LineWriter]:
        self._folder = Path(params[_FOLDER])
        yield LineWriter(self._folder / MESSAGES)

    def answer(self, data: bytes) -> None:
        """Write the answer atomically; it replaces an earlier one."""
        assert self._folder is not None
        part = self._folder / f"{ANSWER}.part"
        part.write_bytes(data)
        part.replace(self._folder / ANSWER)


class FolderReader(dg.PipesMessageReader):
    """Run's side: passes messages on as they arrive, and has the child's answer when the session is over."""

    def __init__(self) -> None:
        self.answer: bytes | None = None
        """Answer of the child; None while the session is open, and if there was none."""

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[PipesParams]:
        with tempfile.TemporaryDirectory(prefix="penstock-spark-") as name:
            folder, ended = Path(name), threading.Event()
            (folder / MESSAGES).touch()
            thread = threading.Thread(target=self._read, args=(folder / MESSAGES, handler, ended), name="messages", daemon=True)
            thread.start()
            try:
                yield {_FOLDER: name}
            finally:
                ended.set()
                thread.join()
                self.answer = (folder / ANSWER).read_bytes() if (folder / ANSWER).exists() else None

    def _read(self, path: Path, handler: dg.PipesMessageHandler, ended: threading.Event) -> None:
        with path.open("rb") as file:
            for line in whole_lines(file, ended):
                _pass_on(line, handler)

    def no_messages_debug_text(self) -> str:
        return "Attempted to read messages from a folder of this machine."


def whole_lines(file: IO[bytes], ended: threading.Event) -> Iterator[bytes]:
    """Yield the lines of a growing file, each when its newline is there, until `ended` is set and the file is read to its end. Text after
    the last newline then was cut off with its writer, and causes a warning."""
    rest = bytearray()
    while True:
        last = ended.is_set()  # before reading: everything written until then is read
        while piece := file.read(_PIECE):
            begin = len(rest)
            rest += piece
            if (end := rest.rfind(b"\n", begin)) >= 0:
                yield from bytes(rest[:end]).split(b"\n")
                del rest[: end + 1]
        if last:
            break
        ended.wait(_POLL_SECONDS)
    if rest:
        _log.warning("the last message of Spark's process is cut off after %d bytes: %r", len(rest), bytes(rest[:_SHOWN]))


def _pass_on(line: bytes, handler: dg.PipesMessageHandler) -> None:
    if not line.strip():
        return
    try:
        handler.handle_message(json.loads(line))
    except Exception as error:  # noqa: BLE001  # only one message, or one write to Dagster's database, fails; everything else continues
        _log.warning("a message of Spark's process is skipped (%s: %s): %r", type(error).__name__, error, line[:_SHOWN])
