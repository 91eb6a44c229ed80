"""The state directory: its lock, its identity, its folders."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.runtime.changelog.checkpoint import write_checkpoint
from penstock.runtime.model.errors import StateDirectoryError, StateDirectoryLockedError, StreamsError
from penstock.runtime.model.ids import NextOffset, TaskId, TopicPartition
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.locks import FolderLock, SharedLock
from penstock.runtime.worker.lock_waits import LockWaits
from penstock.testing import ManualClock
from tests.support import ROOT, without_root

HOLD = """
import sys
from penstock.runtime.stores.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "app")
directory.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


def test_a_lock_of_another_process_names_it_and_ends_with_it(tmp_path: Path, directory: StateDirectory) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        advice = f"in use by process {holder.pid}: stop it .with penstock stop.*would begin without its stores that have no changelog"
        with pytest.raises(StateDirectoryLockedError, match=advice):
            directory.lock()
        holder.kill()
    directory.lock()
    assert (directory.path / ".lock").read_text() == f"{os.getpid()}\n"
    directory.unlock()
    directory.unlock()


def test_a_second_client_in_this_process_is_refused_too(tmp_path: Path, directory: StateDirectory) -> None:
    directory.lock()
    with pytest.raises(StateDirectoryLockedError, match=f"process {os.getpid()}"):
        StateDirectory(tmp_path, "app").lock()
    with pytest.raises(StreamsError, match="locked already"):
        directory.lock()
    StateDirectory(tmp_path, "another-app").lock()
    directory.unlock()


def test_the_process_id_outlives_restarts_and_is_kafka_streams_file(tmp_path: Path, directory: StateDirectory) -> None:
    with pytest.raises(StreamsError, match="never locked"):
        _ = directory.process_id
    directory.lock()
    first = directory.process_id
    directory.unlock()
    assert json.loads((directory.path / "kafka-streams-process-metadata").read_text()) == {"processId": str(uuid.UUID(first))}
    again = StateDirectory(tmp_path, "app")
    again.lock()
    assert again.process_id == first
    again.unlock()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"processId": "x"}', '{"other": 1}'])
def test_a_broken_process_id_is_replaced(directory: StateDirectory, content: str) -> None:
    directory.path.mkdir()
    (directory.path / "kafka-streams-process-metadata").write_text(content)
    directory.lock()
    uuid.UUID(directory.process_id)
    directory.unlock()


def test_a_state_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StateDirectoryError, match=r"folder .*file/app cannot be used.*a file stands where a folder should be.*set state\.dir"
    ):
        StateDirectory(tmp_path / "file", "app").lock()


def test_a_state_dir_without_rights_is_refused(tmp_path: Path, directory: StateDirectory) -> None:
    tmp_path.chmod(0o500)
    with without_root(), pytest.raises(StateDirectoryError, match=r"Permission denied.*move the state to a folder that it may write"):
        directory.lock()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full: make room, or move the state to another disk, and set state.dir.*PENSTOCK_HOME"),
        (errno.EROFS, "move the state to a disk that can be written.*stores without a changelog would begin empty"),
        (errno.EMFILE, "ulimit"),
    ],
)
def test_a_disk_error_is_reported_with_what_to_do(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        raise OSError(number, os.strerror(number))

    directory.path.mkdir()
    monkeypatch.setattr("penstock.runtime.stores.locks.os.open", refuse)
    with pytest.raises(StateDirectoryError, match=f"{os.strerror(number)}.*{remedy}"):
        directory.lock()


def test_folders_and_files_are_closed_to_others_whatever_the_umask(directory: StateDirectory) -> None:
    before = os.umask(0)
    try:
        directory.lock()
        task = directory.task_directory(TaskId(0, 0))
        write_checkpoint(task, {TopicPartition("t", 0): NextOffset(1)})
    finally:
        os.umask(before)
    for folder in (directory.path, task):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    for file in (directory.path / ".lock", directory.path / "kafka-streams-process-metadata", task / ".checkpoint"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    directory.unlock()


def test_a_folder_that_is_open_to_others_is_closed_and_logged(directory: StateDirectory, caplog: pytest.LogCaptureFixture) -> None:
    directory.path.mkdir()
    directory.path.chmod(0o777)
    directory.lock()
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o750
    assert "was open to others (mode 777)" in caplog.text
    directory.unlock()
    caplog.clear()
    directory.lock()
    assert not caplog.records
    directory.unlock()


def test_tasks_on_disk_are_those_with_content(directory: StateDirectory) -> None:
    assert directory.tasks_on_disk() == []
    for task in (TaskId(1, 0), TaskId(0, 10), TaskId(0, 2)):
        (directory.task_directory(task) / "rocksdb").mkdir()
    directory.task_directory(TaskId(0, 3))
    directory.global_directory()
    (directory.path / "0_x").mkdir()
    assert directory.tasks_on_disk() == [TaskId(0, 2), TaskId(0, 10), TaskId(1, 0)]


def test_wipe_removes_state_but_not_identity_and_snapshots(directory: StateDirectory) -> None:
    directory.lock()
    (directory.task_directory(TaskId(0, 0)) / "rocksdb").mkdir()
    (directory.global_directory() / "rocksdb").mkdir()
    (directory.path / "snapshots").mkdir()
    directory.wipe()
    assert sorted(path.name for path in directory.path.iterdir()) == [".lock", "kafka-streams-process-metadata", "snapshots"]
    directory.wipe()
    directory.unlock()


def test_the_cleaner_removes_idle_tasks_without_an_owner(directory: StateDirectory) -> None:
    now_ms = 10_000_000
    for partition, written_ms in ((0, 0), (1, 0), (2, now_ms - 5)):
        folder = directory.task_directory(TaskId(0, partition)) / "rocksdb"
        folder.mkdir()
        (folder / "log").write_text("")
        for path in (folder / "log", folder, folder.parent):
            os.utime(path, (0, 0))
        os.utime(folder / "log", (written_ms / 1000, written_ms / 1000))
    assert directory.clean({TaskId(0, 0)}, 600_000, now_ms) == [TaskId(0, 1)]
    assert directory.tasks_on_disk() == [TaskId(0, 0), TaskId(0, 2)]
    assert directory.clean(set(), 5, now_ms) == [TaskId(0, 0), TaskId(0, 2)]


def _idle_task(directory: StateDirectory, task: TaskId) -> None:
    """Create a task's folder that was last written in 1970."""
    folder = directory.task_directory(task)
    (folder / "rocksdb").mkdir()
    for path in (folder / "rocksdb", folder):
        os.utime(path, (0, 0))


def test_a_task_that_is_open_is_neither_cleaned_nor_wiped_nor_opened_twice(directory: StateDirectory) -> None:
    _idle_task(directory, TaskId(0, 0))
    _idle_task(directory, TaskId(0, 1))
    lock = directory.task_lock(TaskId(0, 0))
    lock.acquire()
    lock.acquire()
    assert directory.clean(set(), 0, 10_000_000) == [TaskId(0, 1)]
    with pytest.raises(StateDirectoryLockedError, match=f"task 0_0 .*in use by process {os.getpid()}"):
        directory.wipe()
    with pytest.raises(StateDirectoryLockedError, match="task 0_0"):
        StateDirectory(directory.path.parent, "app").task_lock(TaskId(0, 0)).acquire()
    lock.release()
    assert not lock.held
    assert directory.clean(set(), 0, 1 << 50) == [TaskId(0, 0)]


def test_a_task_lock_is_released_when_its_process_ends(tmp_path: Path, directory: StateDirectory) -> None:
    directory.task_directory(TaskId(0, 0))
    program = HOLD.replace("directory.lock()", "lock = directory.task_lock(TaskId(0, 0)); lock.acquire()")
    program = "from penstock.runtime.model.ids import TaskId" + program
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(StateDirectoryLockedError, match=f"in use by process {holder.pid}"):
            directory.task_lock(TaskId(0, 0)).acquire()
        holder.kill()
    directory.task_lock(TaskId(0, 0)).acquire()


def test_a_folder_with_only_a_lock_file_holds_no_state(directory: StateDirectory) -> None:
    directory.task_directory(TaskId(0, 0))
    lock = directory.task_lock(TaskId(0, 0))
    lock.acquire()
    lock.release()
    assert directory.tasks_on_disk() == []


def test_locking_a_folder_that_is_being_removed_locks_the_new_one(directory: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory.task_directory(TaskId(0, 0))
    lock = directory.task_lock(TaskId(0, 0))
    opened = lock._open

    def late() -> int:
        monkeypatch.setattr(lock, "_open", opened)
        descriptor = opened()
        (folder / ".lock").unlink()  # by the cleaner, which held it until now
        return descriptor

    monkeypatch.setattr(lock, "_open", late)
    lock.acquire()
    with pytest.raises(StateDirectoryLockedError):
        directory.task_lock(TaskId(0, 0)).acquire()
    lock.release()


def test_a_folder_that_another_worker_removes_between_two_checks_is_created_again(directory: StateDirectory) -> None:
    folder = directory.task_directory(TaskId(0, 0))
    lock = directory.task_lock(TaskId(0, 0))
    StateDirectory(directory.path.parent, "app").wipe_task(TaskId(0, 0))
    assert not folder.exists()
    lock.acquire()
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o750


def test_a_task_folder_is_renamed_before_it_is_removed(directory: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opens the task meanwhile must not find a folder that is being emptied."""
    _idle_task(directory, TaskId(0, 0))
    seen: list[list[str]] = []
    remove = shutil.rmtree

    def rmtree(path: Path) -> None:
        seen.append(sorted(each.name for each in directory.path.iterdir() if each.is_dir()))
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    directory.wipe_task(TaskId(0, 0))
    assert [f".removed-0_0-{os.getpid()}"] in seen
    assert directory.tasks_on_disk() == [] and not list(directory.path.glob(".removed*"))


def test_a_task_that_is_written_to_during_the_clean_up_stays(directory: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    _idle_task(directory, TaskId(0, 0))
    lock = directory.task_lock(TaskId(0, 0))
    acquire = FolderLock.acquire

    def late(self: FolderLock) -> None:
        (directory.path / "0_0" / "written").touch()  # by a sibling, which has released it again
        acquire(self)

    now_ms = (directory.path / "0_0").stat().st_mtime_ns // 1_000_000 + 600_000
    monkeypatch.setattr(FolderLock, "acquire", late)
    os.utime(directory.path / "0_0", (0, 0))
    for each in (directory.path / "0_0").rglob("*"):
        os.utime(each, (0, 0))
    assert directory.clean(set(), 600_001, now_ms) == []
    lock.release()


def test_a_removal_that_was_interrupted_by_a_kill_is_completed(tmp_path: Path) -> None:
    left = tmp_path / "app" / ".removed-0_1-123"
    (left / "rocksdb").mkdir(parents=True)
    StateDirectory(tmp_path, "app").lock()
    assert not left.exists()


def test_global_stores_of_removed_workers_are_removed(directory: StateDirectory) -> None:
    folders = [directory.global_directory(number) for number in (1, 2, 3)]
    assert [folder.name for folder in folders] == ["global", "global-2", "global-3"]
    directory.remove_global_copies(above=2)
    assert [folder.exists() for folder in folders] == [True, True, False]
    directory.wipe()
    assert not any(folder.exists() for folder in folders)


def test_the_next_client_waits_for_the_workers_of_its_predecessor(directory: StateDirectory) -> None:
    directory.lock()
    share = SharedLock(directory.path, "the state directory")
    other = SharedLock(directory.path, "the state directory")
    share.acquire()
    other.acquire()
    with pytest.raises(StateDirectoryLockedError, match="in use by workers of a process that is gone"):
        share.await_none(0.1)
    for lock in (share, other):
        assert lock._descriptor is not None
        os.close(lock._descriptor)  # as the end of its process does
    share.await_none(0.1)


def test_a_worker_that_finds_a_task_locked_waits_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    waits = LockWaits(clock)
    busy = StateDirectoryLockedError("task 0_0 is in use by process 7")
    caplog.set_level("INFO")
    waits.wait(TaskId(0, 0), busy)
    assert not caplog.records, "a moment is nothing"
    clock.advance(2_000)
    waits.wait(TaskId(0, 0), busy)
    waits.wait(TaskId(0, 0), busy)
    assert len(caplog.records) == 1
    waits.done(TaskId(0, 0))
    clock.advance(59_000)
    waits.wait(TaskId(0, 0), busy)
    clock.advance(60_000)
    with pytest.raises(StateDirectoryLockedError):
        waits.wait(TaskId(0, 0), busy)
