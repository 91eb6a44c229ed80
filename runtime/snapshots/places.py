"""Files and folders of snapshots, on this machine or in any file system that `pyarrow.fs` supports (S3, GCS, HDFS, …).

`Place` is the common interface, similar to `pathlib.Path`. A local path needs no Arrow, which is slow to import: an instance that uses only
its own folders never imports it. Every URI goes through Arrow, including `file://`.

All errors are StateDirectoryErrors that name the place, without the credentials that a URI may contain.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.stores.locks import remedy

PARTIAL = ".partial"
"""Suffix of a file that is being written."""


class Place(ABC):
    """A file or folder that may exist. `str()` is for messages; `place_of(place.uri)` returns the same place."""

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of the path."""

    @property
    @abstractmethod
    def local(self) -> Path | None:
        """The path, if it is in this machine's own file system; else None."""

    @abstractmethod
    def __truediv__(self, name: str) -> Place: ...

    @abstractmethod
    def children(self) -> list[Place]:
        """Return the entries of this folder, ordered by name; empty if it is not a folder."""

    @abstractmethod
    def size(self) -> int | None:
        """Return the size of this file in bytes; None if it does not exist."""

    @abstractmethod
    def modified_ms(self) -> int | None:
        """Return the time of the last change, ms since the epoch; None if it does not exist or the time is unknown."""

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the contents of this file; None if it does not exist."""

    @abstractmethod
    def reading(self, size: int) -> Iterator[bytes]:
        """Yield the contents of this file in pieces of `size` bytes; the last one may be smaller."""

    @abstractmethod
    def write(self, pieces: Iterator[bytes]) -> None:
        """Write this file atomically: until it is complete, readers see the old file or none. Creates the folders above it. If `pieces`
        raises, no file is written."""

    @abstractmethod
    def remove(self) -> None:
        """Remove this file, or this folder with its contents. Does nothing if it does not exist."""


def absolute(where: str) -> bool:
    """Return True for a URI or an absolute path."""
    return "://" in where or where.startswith("/")


@contextmanager
def place_errors(what: str, place: object) -> Iterator[None]:
    """Turn an OSError into a StateDirectoryError, with the remedy where one is known."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        raise StateDirectoryError(f"{place} cannot be {what}: {reason}{remedy(reason, state=False)}") from error


class LocalPlace(Place):
    """A path."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().absolute()

    def __str__(self) -> str:
        return str(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalPlace) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def local(self) -> Path | None:
        return self._path

    def __truediv__(self, name: str) -> Place:
        return LocalPlace(self._path / name)

    def children(self) -> list[Place]:
        with place_errors("listed", self):
            return [LocalPlace(path) for path in sorted(self._path.iterdir())] if self._path.is_dir() else []

    def size(self) -> int | None:
        return self._stat(lambda stat: stat.st_size) if self._path.is_file() else None

    def modified_ms(self) -> int | None:
        return self._stat(lambda stat: stat.st_mtime_ns // 1_000_000)

    def _stat(self, wanted: Callable[[os.stat_result], int]) -> int | None:
        try:
            return wanted(self._path.stat())
        except FileNotFoundError:
            return None

    def read(self) -> bytes | None:
        with place_errors("read", self):
            try:
                return self._path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def reading(self, size: int) -> Iterator[bytes]:
        with place_errors("read", self), self._path.open("rb") as file:
            yield from _pieces(file, size)

    def write(self, pieces: Iterator[bytes]) -> None:
        partial = self._path.with_name(self._path.name + PARTIAL)
        with place_errors("written", self):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(self._path)
            finally:
                partial.unlink(missing_ok=True)

    def remove(self) -> None:
        with place_errors("removed", self):
            if self._path.is_dir() and not self._path.is_symlink():
                shutil.rmtree(self._path)
            else:
                self._path.unlink(missing_ok=True)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece
