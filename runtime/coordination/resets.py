"""Resets of an application, as an instance sees them (`penstock reset`, `orchestration/run_books/reset_application.py`).

A reset deletes what is on the brokers and on the disks that it can reach. For all others the coordination topic keeps the last reset, and
each state folder the one that it knows, in `.reset/id`. A folder that knows another one is of before: it is emptied before anything is
opened. (Not enough: the ids of the changelogs' topics, which stores keep. Stores without a changelog have none.)

Between a reset's first step and its last the offsets, the topics and the disks do not belong together: a start is refused. An instance
that was not seen (frozen for longer than its session, on another machine; or about to start) meets the record when it reads on, and ends.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.records import MEMBER, RESET, SEED, SHAPE, TOPOLOGY, Reset, StateShape, Written
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import ResetError, StateDirectoryLockedError
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.stores.locks import FILE_MODE, FolderLock, unusable

logger = logging.getLogger(__name__)

_FOLDER, _ID = ".reset", "id"
_LOCK_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def last_reset(config: StreamsConfig, topics: TopicAdmin) -> Reset | None:
    """The last reset of the application, None if there was none. Raises BrokerUnavailableError, StreamsError."""
    topic = coordination_topic(config.application_id)
    if topic not in topics.describe([topic]):
        return None
    found = [record for record in read_past(config, RESET) if isinstance(record, Reset)]
    return found[-1] if found else None


def stands_as_reset(config: StreamsConfig, topics: TopicAdmin) -> bool:
    """True if the application was reset and no instance has run since. Raises as `last_reset`."""
    topic = coordination_topic(config.application_id)
    if topic not in topics.describe([topic]):
        return False
    # A seed that is being installed records the formats of its entries.
    found = [record for record in read_past(config, RESET, TOPOLOGY, SHAPE, MEMBER) if not _is_of_seed(record)]
    return bool(found) and all(isinstance(record, Reset) and record.ended for record in found)


def _is_of_seed(record: Written) -> bool:
    return isinstance(record, StateShape) and record.by == SEED


def drop_state_of_before(config: StreamsConfig, topics: TopicAdmin, directory: StateDirectory) -> None:
    """Asked at each start, and by a seed, before anything is opened: removes local state that is older than the last reset. Raises
    ResetError where one has begun and not ended; StateDirectoryError, BrokerUnavailableError, StreamsError."""
    reset = last_reset(config, topics)
    if reset is None:
        return
    refuse_unfinished(reset, config.application_id)
    lock = FolderLock(directory.path / _FOLDER, "the state of before a reset")
    _acquire(lock)
    try:
        if known_reset(directory) != reset.id:
            _drop(directory, reset)
    finally:
        lock.release()


def refuse_unfinished(reset: Reset, application_id: str) -> None:
    """Raises ResetError."""
    if not reset.ended:
        raise ResetError(
            f"a reset of application {application_id} was begun by {reset.by} at {_clock(reset)} and has not come to its end: end it with "
            f"{reset_command(reset, application_id)}, then start again"
        )


def reset_command(reset: Reset, application_id: str) -> str:
    """The command that repeats a reset, with the options that it was given."""
    return f"penstock reset {application_id} {reset.options}".rstrip()


def refuse_other(reset: Reset | None, directory: StateDirectory, application_id: str) -> None:
    """Asked of each reset that is read while an instance runs. Raises ResetError where it is not the one that its state knows."""
    if reset is None:
        return
    refuse_unfinished(reset, application_id)
    if known_reset(directory) != reset.id:
        raise ResetError(
            f"application {application_id} was reset by {reset.by} at {_clock(reset)}, while this instance was taken for dead: its state "
            "is of before. Start it again, and it begins with the others"
        )


def known_reset(directory: StateDirectory) -> str | None:
    """The id of the last reset that the folder knows. Raises StateDirectoryError."""
    path = _path(directory)
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(f"the file {path}", error) from error


def know_reset(directory: StateDirectory, reset_id: str) -> None:
    """Writes down that the folder holds nothing of before this reset. Raises StateDirectoryError."""
    path = _path(directory)
    written = path.with_name(f"{_ID}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(f"{reset_id}\n", encoding="utf-8")
        written.chmod(FILE_MODE)
        written.replace(path)
    except OSError as error:
        raise unusable(f"the file {path}", error) from error


def _drop(directory: StateDirectory, reset: Reset) -> None:
    tasks = directory.tasks_on_disk()
    directory.wipe()
    know_reset(directory, reset.id)
    if tasks:
        logger.warning(
            "the state of tasks %s in %s is of before the reset by %s at %s, and is removed",
            ", ".join(map(str, tasks)),
            directory.path,
            reset.by,
            _clock(reset),
        )


def _acquire(lock: FolderLock) -> None:
    """Waits for the lock, which another worker of the instance may hold for the same purpose."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock.acquire()
            return
        except StateDirectoryLockedError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)


def _path(directory: StateDirectory) -> Path:
    return directory.path / _FOLDER / _ID


def _clock(reset: Reset) -> str:
    return datetime.fromtimestamp(reset.at_ms / 1000, UTC).isoformat(timespec="seconds")
