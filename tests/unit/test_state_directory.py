"""The state directory: its lock, its identity, its folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from runtime.errors import StateDirectoryError, StateDirectoryLockedError, StreamsError
from runtime.ids import TaskId
from runtime.stores.directory import StateDirectory
from tests.support import without_root

HOLD = """
import sys
from runtime.stores.directory import StateDirectory
directory = StateDirectory(sys.argv[1], "app")
directory.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


def test_a_lock_of_another_process_names_it_and_ends_with_it(tmp_path: Path, directory: StateDirectory) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(StateDirectoryLockedError, match=f"in use by process {holder.pid}"):
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
def test_a_broken_process_id_is_made_anew(directory: StateDirectory, content: str) -> None:
    directory.path.mkdir()
    (directory.path / "kafka-streams-process-metadata").write_text(content)
    directory.lock()
    uuid.UUID(directory.process_id)
    directory.unlock()


def test_a_state_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match=r"state directory .*file/app cannot be used.*Set state\.dir"):
        StateDirectory(tmp_path / "file", "app").lock()


def test_a_state_dir_without_rights_is_refused(tmp_path: Path, directory: StateDirectory) -> None:
    tmp_path.chmod(0o500)
    with without_root(), pytest.raises(StateDirectoryError, match="Permission denied"):
        directory.lock()


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


def test_the_cleaner_takes_idle_tasks_that_nobody_owns(directory: StateDirectory) -> None:
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
