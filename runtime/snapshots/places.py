"""Where a snapshot may lie: a folder of this machine, or a folder anywhere that `pyarrow.fs` reaches (file, S3, GCS, HDFS, …).

A `Place` is to both what `pathlib.Path` is to the first. A path needs no Arrow, which takes a while to import: an instance that only looks
into its own folders never pays for it. A URI always goes through Arrow, `file://` too, so that one way serves all of them.

What goes wrong is a StateDirectoryError with the place in it, never with the credentials that a URI may carry.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from runtime.errors import StateDirectoryError
from runtime.stores.locks import way_out

PARTIAL = ".partial"
"""Ends the name of a file that is being written."""


class Place(ABC):
    """A file or folder that may be there. `str()` is for messages; `uri` is what `place_of` makes the same place of."""

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
        """The path, if this machine's own file system holds it."""

    @abstractmethod
    def __truediv__(self, name: str) -> Place: ...

    @abstractmethod
    def children(self) -> list[Place]:
        """What lies in this folder, in the order of names; nothing if it is no folder."""

    @abstractmethod
    def size(self) -> int | None:
        """Bytes of this file; None if there is none."""

    @abstractmethod
    def modified_ms(self) -> int | None:
        """When it was changed last, ms since the epoch; None if it is not there or nobody knows."""

    @abstractmethod
    def read(self) -> bytes | None:
        """All of a file; None if there is none."""

    @abstractmethod
    def reading(self, size: int) -> Iterator[bytes]:
        """A file in pieces of `size` bytes, the last one smaller."""

    @abstractmethod
    def write(self, pieces: Iterator[bytes]) -> None:
        """Writes a file whole: somebody who looks meanwhile sees the old one or none. Makes the folders above it. If `pieces` raises,
        there is no file."""

    @abstractmethod
    def remove(self) -> None:
        """Removes a file, or a folder with all that is in it; nothing happens if it is not there."""


def place_of(where: str | Path) -> Place:
    """The place of a path, or of a URI (`s3://bucket/folder`). Raises StateDirectoryError for a URI that nothing here can open."""
    if isinstance(where, str) and "://" in where:
        from runtime.snapshots.arrow import ArrowPlace

        return ArrowPlace.of(where)
    return LocalPlace(Path(where))


def absolute(where: str) -> bool:
    """True for a URI and for a path from the root: it says where it is without another place."""
    return "://" in where or where.startswith("/")


@contextmanager
def telling(what: str, place: object) -> Iterator[None]:
    """Makes a StateDirectoryError of what the system says, with the way out where one is known."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        raise StateDirectoryError(f"{place} cannot be {what}: {reason}{way_out(reason, state=False)}") from error


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
        with telling("listed", self):
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
        with telling("read", self):
            try:
                return self._path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def reading(self, size: int) -> Iterator[bytes]:
        with telling("read", self), self._path.open("rb") as file:
            yield from _pieces(file, size)

    def write(self, pieces: Iterator[bytes]) -> None:
        partial = self._path.with_name(self._path.name + PARTIAL)
        with telling("written", self):
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
        with telling("removed", self):
            if self._path.is_dir() and not self._path.is_symlink():
                shutil.rmtree(self._path)
            else:
                self._path.unlink(missing_ok=True)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece
