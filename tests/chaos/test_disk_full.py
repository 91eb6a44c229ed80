"""The disk is full: the client ends with an error that names the folder and a remedy, and continues when there is space again.

The disk is a small tmpfs, where this process may mount one; else a limit on the size of the process's files, which fails the same calls
with another error (EFBIG in place of ENOSPC).
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.runtime.client.running import EXIT_STATE_DIRECTORY
from tests.support import Kafka, wait_until
from tests.support.instances import Application, application

DISK_MIB = 24
FILE_BYTES = 150_000
"""Less than a store's write-ahead log will need, more than the process's log."""
RECORDS, KEYS, PORTIONS = 4_000, 4_000, 8


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder, and how to leave no space there for the state of a process, and to make space again."""

    folder: Path
    fill: Callable[[int], object]
    empty: Callable[[int], object]


def _mounted(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(command, check=False, capture_output=True).returncode == 0


def _write_until_full(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"." * 65_536)
        except OSError:
            return


@pytest.fixture(params=["no space left", "files may not grow"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "files may not grow":

        def limit(pid: int) -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))

        yield Disk(folder, limit, lambda pid: None)
        return
    if not _mounted(folder):
        pytest.skip("this process may not mount a tmpfs")
    try:
        filler = folder / "filler"
        yield Disk(folder, lambda pid: _write_until_full(filler), lambda pid: filler.unlink())
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def written(app: Application) -> int:
    return len(app.broker.consume(app.output))


def test_on_a_full_disk_the_client_ends_and_names_the_folder_and_continues_when_there_is_space(
    broker: Kafka, application_id: str, tmp_path: Path, disk: Disk
) -> None:
    settings: dict[str, object] = {"state.dir": str(disk.folder / "state"), "statestore.checkpoint.interval.ms": 200}
    with application(broker, application_id, tmp_path, partitions=2, **settings) as app:
        instance = app.start("one")
        app.produce(RECORDS, KEYS)
        wait_until(lambda: written(app) >= RECORDS, 60, "the first outputs")
        disk.fill(instance.pid)
        for _ in range(PORTIONS):
            app.produce(RECORDS, KEYS)
        wait_until(lambda: instance.poll() is not None, 60, "the end of the instance")
        assert instance.returncode == EXIT_STATE_DIRECTORY, app.log("one")[-3_000:]
        last = app.log("one").splitlines()[-1]
        assert str(disk.folder / "state") in last
        assert "To solve it: " in last
        disk.empty(instance.pid)
        before = len(app.log("one"))
        assert "is wiped" not in app.log("one")
        records = sum(broker.end_offsets(app.source).values())
        app.start("one")
        app.each_update_came_once(records, KEYS, seconds=90)
        since = app.log("one")[before:]
        assert "is wiped" not in since and "damaged" not in since, "state was thrown away"
        assert app.stop("one") == 0
