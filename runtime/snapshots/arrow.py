"""Places in the file systems of `pyarrow.fs`. The engine's only module that imports Arrow; it is imported when the first URI is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.model.secrets import without_credentials
from penstock.runtime.snapshots.places import PARTIAL, Place, place_errors

_WHOLE_AT_ONCE = frozenset({"s3", "gcs", "abfs"})
"""Object stores: an object becomes visible when it is complete, and a rename is a copy."""
_EXAMPLES = "file:///folder, s3://bucket/folder, gs://bucket/folder, hdfs://host:port/folder"


@contextmanager
def _arrow_errors(what: str, place: object) -> Iterator[None]:
    """As `place_errors`, for Arrow's own exceptions too."""
    try:
        with place_errors(what, place):
            yield
    except pa.ArrowException as error:
        raise StateDirectoryError(f"{place} cannot be {what}: {error}") from error


@dataclass(frozen=True)
class ArrowPlace(Place):
    """A path in one of Arrow's file systems. `base` and `query` are the URI's parts before and after the path."""

    files: fs.FileSystem
    path: str
    base: str
    query: str

    @classmethod
    def of(cls, uri: str) -> ArrowPlace:
        """Open the place of a URI. Raises StateDirectoryError for an unknown scheme, or a URI that the file system rejects."""
        try:
            parts = urlsplit(uri)
            files, path = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            scheme = uri.split("://", 1)[0]
            raise StateDirectoryError(
                f"no file system can be opened for {without_credentials(uri)} ({scheme}): {without_credentials(str(error))}. "
                f"Known are {_EXAMPLES}"
            ) from error
        # A bucket is part of Arrow's path, a host is not.
        host = parts.netloc if path.startswith("/") else parts.netloc.rpartition("@")[0] + "@" * ("@" in parts.netloc)
        return cls(files, path.rstrip("/") or "/", f"{parts.scheme}://{host}", f"?{parts.query}" if parts.query else "")

    def __str__(self) -> str:
        return without_credentials(self.base + self.path)

    @property
    def uri(self) -> str:
        return f"{self.base}{quote(self.path)}{self.query}"

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def local(self) -> Path | None:
        return Path(self.path) if isinstance(self.files, fs.LocalFileSystem) else None

    def __truediv__(self, name: str) -> ArrowPlace:
        return self._at(f"{self.path.rstrip('/')}/{name}")

    def _at(self, path: str) -> ArrowPlace:
        return ArrowPlace(self.files, path, self.base, self.query)

    def children(self) -> list[Place]:
        with _arrow_errors("listed", self):
            found = self.files.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return [self._at(info.path) for info in sorted(found, key=lambda info: str(info.path))]

    def _info(self) -> fs.FileInfo:
        with _arrow_errors("looked at", self):
            return self.files.get_file_info(self.path)

    def size(self) -> int | None:
        info = self._info()
        return int(info.size) if info.type == fs.FileType.File else None

    def modified_ms(self) -> int | None:
        info = self._info()
        return None if info.type == fs.FileType.NotFound or info.mtime_ns is None else int(info.mtime_ns) // 1_000_000

    def read(self) -> bytes | None:
        if self.size() is None:
            return None
        with _arrow_errors("read", self), self.files.open_input_stream(self.path, compression=None) as file:
            return bytes(file.read())

    def reading(self, size: int) -> Iterator[bytes]:
        with _arrow_errors("read", self), self.files.open_input_stream(self.path, compression=None) as file:
            while piece := file.read(size):
                yield bytes(piece)

    def write(self, pieces: Iterator[bytes]) -> None:
        at_once = self.files.type_name in _WHOLE_AT_ONCE
        target = self.path if at_once else self.path + PARTIAL
        with _arrow_errors("written", self):
            if not at_once:
                self.files.create_dir(self.path.rsplit("/", 1)[0], recursive=True)
            try:
                with self.files.open_output_stream(target, compression=None) as file:
                    for piece in pieces:
                        file.write(piece)
                if not at_once:
                    self.files.move(target, self.path)
            except BaseException:  # an incomplete file must not be mistaken for a complete one
                with suppress(StateDirectoryError):
                    self._at(target).remove()
                raise

    def remove(self) -> None:
        kind = self._info().type
        with _arrow_errors("removed", self):
            if kind == fs.FileType.Directory:
                self.files.delete_dir(self.path)
            elif kind == fs.FileType.File:
                self.files.delete_file(self.path)
