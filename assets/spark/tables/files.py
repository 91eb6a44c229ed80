"""Tables on disk, as Parquet or Delta: replaced atomically, whole or by days; safe to stop at any moment and to repeat.

    <location>                          Parquet: a link to the current version. Delta: the table itself (a folder or a URI)
    <versions>/<version>/               Parquet: the files. Both: `_source.json` (`TableVersion`), the state of a run over the changelog
    <versions>/.lock                    held while a process writes

A Parquet version is a folder that never changes; days that a run does not make are hard links to the files of the previous version. The
link is replaced atomically, so a reader sees one version or the other, and keeps the one that it has opened: the last two are retained.
Delta has its own transactions: the data and the version's description, as the commit's user metadata, become visible together.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.orchestration.tables import SOURCE, TableVersion, WrongTableError, decoded
from penstock.runtime.stores.locks import remedy

DAY = "day"
_KEPT = 2
_COMMITS = 20


Finish = Callable[[Path], None]


class TableFiles(ABC):
    """A table. `location` and `versions` are as in `TableRequest`."""

    def __init__(self, location: str, versions: Path) -> None:
        self.location = location
        self.versions = versions

    @abstractmethod
    def version(self, spark: SparkSession) -> TableVersion | None:
        """Return the current version; None if there is no table yet."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """Read the current version. Raises WrongTableError if there is none."""

    @abstractmethod
    def bytes(self, spark: SparkSession) -> int:
        """Return the size of the files of the current version."""

    @abstractmethod
    def _write(self, frame: DataFrame, version: TableVersion, before: TableVersion | None, finish: Finish) -> None: ...

    def write(self, frame: DataFrame, version: TableVersion, finish: Finish = lambda folder: None) -> bool:
        """Replace the table by `frame`; in a table by days, only the days `version.first_day` to `version.last_day`, which are all that
        `frame` may contain.

        `finish` is called with the version's folder after the rows are written, to add other files of the version: in Parquet before the
        version becomes current, in Delta, where the write itself makes it current, right after. Return False without a change if this
        version is already current: an earlier attempt made it. Raises WrongTableError if another run writes the table, or if the location
        cannot be written.
        """
        with self._locked():
            before = self.version(frame.sparkSession)
            if before is not None and before.version == version.version:
                return False
            with location_errors(self.location):
                folder = self.versions / version.version
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            self._write(frame, version, before, finish)
            self._prune(version.version)
            return True

    def clear(self, spark: SparkSession, name: str) -> None:
        """Make an existing table empty, as version `name`; do nothing if there is none."""
        version = self.version(spark)
        if version is not None:
            empty = msgspec.structs.replace(version, version=name, by_day=False, first_day=None, last_day=None)
            self.write(self.read(spark).limit(0), empty)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with location_errors(self.location):
            self.versions.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.versions / ".lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout as error:
                raise WrongTableError(f"{self.location} is being written by another run: wait for its end, or cancel it") from error
        try:
            yield
        finally:
            lock.release()

    def _describe(self, version: TableVersion) -> None:
        """Write the description that makes the folder of a version complete."""
        with location_errors(self.location):
            path = self.versions / version.version / SOURCE
            with path.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(version), indent=2))
                file.flush()
                os.fsync(file.fileno())

    def _prune(self, current: str) -> None:
        """Remove incomplete versions, and all but the newest complete ones. If something cannot be removed, the next run tries again."""
        folders = sorted((path for path in self.versions.iterdir() if path.is_dir()), key=lambda path: path.name, reverse=True)
        complete = [path.name for path in folders if (path / SOURCE).exists() and path.name != current]
        kept = {current, *complete[: _KEPT - 1]}
        for path in folders:
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


class ParquetFiles(TableFiles):
    """See the module's docstring. `location` is a path."""

    def version(self, spark: SparkSession) -> TableVersion | None:
        with location_errors(self.location):
            path = Path(self.location) / SOURCE
            return decoded(path.read_bytes(), path) if path.exists() else None

    def read(self, spark: SparkSession) -> DataFrame:
        folder = Path(self.location).resolve()
        version = self.version(spark)
        if version is None:
            raise WrongTableError(f"{self.location} holds no table yet: materialise it first")
        # The explicit schema makes a table without files a table without rows.
        return spark.read.schema(StructType.fromJson(msgspec.json.decode(version.schema))).parquet(str(folder))

    def bytes(self, spark: SparkSession) -> int:
        folder = Path(self.location).resolve()
        return sum(path.stat().st_size for path in folder.rglob("*.parquet") if "_changelog" not in path.relative_to(folder).parts)

    def _write(self, frame: DataFrame, version: TableVersion, before: TableVersion | None, finish: Finish) -> None:
        folder = self.versions / version.version
        writer = frame.write.mode("append")  # the folder exists and is empty
        (writer.partitionBy(DAY) if version.by_day else writer).parquet(str(folder))
        if version.by_day and before is not None and before.by_day:
            with location_errors(self.location):
                self._take_along(Path(self.location).resolve(), folder, version)
        finish(folder)
        self._describe(version)
        with location_errors(self.location):
            self._link(folder)

    def _take_along(self, old: Path, new: Path, version: TableVersion) -> None:
        """Link the files of days that this run did not make."""
        assert version.first_day is not None and version.last_day is not None  # every run over a table by days sets them
        for day in old.glob(f"{DAY}=*"):
            if version.first_day <= day.name.removeprefix(f"{DAY}=") <= version.last_day:
                continue
            (new / day.name).mkdir()
            for file in day.glob("*.parquet"):
                _link_or_copy(file, new / day.name / file.name)

    def _link(self, folder: Path) -> None:
        location = Path(self.location)
        location.parent.mkdir(parents=True, exist_ok=True)
        if location.is_dir() and not location.is_symlink():
            raise WrongTableError(f"{location} is a folder that is not a table of this project: move it away, or declare another place")
        pointer = location.with_name(f".{location.name}.{folder.name}.link")
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(os.path.relpath(folder, location.parent))
        os.replace(pointer, location)


class DeltaFiles(TableFiles):
    """See the module's docstring. The session must have been made with Delta."""

    def version(self, spark: SparkSession) -> TableVersion | None:
        if not self._exists(spark):
            return None
        history = spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT {_COMMITS}").select("version", "userMetadata")
        for commit in history.orderBy(F.desc("version")).collect():
            if commit.userMetadata:  # commits of other tools (OPTIMIZE, VACUUM) have none
                return decoded(commit.userMetadata.encode(), self.location)
        raise WrongTableError(f"{self.location} was not written by this project: declare another place, or move it away")

    def read(self, spark: SparkSession) -> DataFrame:
        if not self._exists(spark):
            raise WrongTableError(f"{self.location} holds no table yet: materialise it first")
        return spark.read.format("delta").load(self.location)

    def bytes(self, spark: SparkSession) -> int:
        detail = spark.sql(f"DESCRIBE DETAIL {self._name}").select("sizeInBytes").first()
        return 0 if detail is None else int(detail[0] or 0)

    def _write(self, frame: DataFrame, version: TableVersion, before: TableVersion | None, finish: Finish) -> None:
        self._describe(version)
        if "://" not in self.location and Path(self.location).is_symlink():
            Path(self.location).unlink()  # the table was Parquet so far
        writer = frame.write.format("delta").mode("overwrite").option("userMetadata", msgspec.json.encode(version).decode())
        if version.by_day:
            writer = writer.partitionBy(DAY)
        if version.by_day and before is not None and before.by_day:
            days = f"{DAY} >= '{version.first_day}' AND {DAY} <= '{version.last_day}'"
            writer.option("replaceWhere", days).option("mergeSchema", "true").save(self.location)
        else:
            writer.option("overwriteSchema", "true").save(self.location)
        finish(self.versions / version.version)

    @property
    def _name(self) -> str:
        return f"delta.`{self.location}`"

    def _exists(self, spark: SparkSession) -> bool:
        if "://" not in self.location:
            return (Path(self.location) / "_delta_log").is_dir()
        try:
            spark.sql(f"DESCRIBE DETAIL {self._name}").collect()
        except Exception as error:
            if "DELTA_MISSING_DELTA_TABLE" in str(error) or "DELTA_TABLE_NOT_FOUND" in str(error) or "PATH_NOT_FOUND" in str(error):
                return False
            raise
        return True


def table_files(form: str, location: str, versions: Path) -> TableFiles:
    """Return the files of a table in format `parquet` or `delta`."""
    return (DeltaFiles if form == "delta" else ParquetFiles)(location, versions)


@contextlib.contextmanager
def location_errors(location: str) -> Iterator[None]:
    """Turn an OSError into a WrongTableError that names the table."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        raise WrongTableError(
            f"the table {location} cannot be written: {reason} ({error.filename}){remedy(reason, state=False)}"
        ) from error


def _link_or_copy(file: Path, to: Path) -> None:
    try:
        os.link(file, to)
    except OSError:  # a file system without links, or another file system
        shutil.copy2(file, to)
