"""Checks of an instance against resets of its application (`penstock reset`, `orchestration/run_books/reset_application.py`).

A reset deletes state on the brokers and on the disks that it can reach. For other disks, the coordination topic keeps the last reset, and
each state folder the id of the last reset that it has seen, in `.reset/id`. A folder with another id is older than the reset and is emptied
before anything is opened. (The topic ids of changelogs, which stores keep, do not suffice: some stores have no changelog.)

Between the first and the last step of a reset, offsets, topics and disks do not fit together, so no instance starts. An instance that the
reset did not see (frozen for longer than its session, on another machine, or about to start) stops when it reads the record.
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
_RETRY_SECONDS = 0.05


def last_reset(config: StreamsConfig, topics: TopicAdmin) -> Reset | None:
    """Return the last reset of the application, None if there was none. Raises BrokerUnavailableError, StreamsError."""
    topic = coordination_topic(config.application_id)
    if topic not in topics.describe([topic]):
        return None
    found = [record for record in read_past(config, RESET) if isinstance(record, Reset)]
    return found[-1] if found else None


def stands_as_reset(config: StreamsConfig, topics: TopicAdmin) -> bool:
    """Return True if the application was reset and no instance has run since. Raises as `last_reset`."""
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
    lock = FolderLock(directory.path / _FOLDER, "the state from before a reset")
    _acquire(lock)
    try:
        if known_reset(directory) != reset.id:
            _drop(directory, reset)
    finally:
        lock.release()


def refuse_unfinished(reset: Reset, application_id: str) -> None:
    """Raise ResetError for a reset that has not ended."""
    if not reset.ended:
        raise ResetError(f"{unfinished(reset, application_id)}, then start again")


def unfinished(reset: Reset, application_id: str) -> str:
    """Return a sentence on a reset that has not ended: by whom it was begun and when, and the command that ends it."""
    return (
        f"a reset of application {application_id} was begun by {reset.by} at {_clock(reset)} and has not ended: end it with "
        f"{reset_command(reset, application_id)}"
    )


def reset_command(reset: Reset, application_id: str) -> str:
    """Return the command that repeats a reset, with its options."""
    return f"penstock reset {application_id} {reset.options}".rstrip()


def refuse_other(reset: Reset | None, directory: StateDirectory, application_id: str) -> None:
    """Check a reset that is read while an instance runs. Raises ResetError if it is not the one that the state folder has seen."""
    if reset is None:
        return
    refuse_unfinished(reset, application_id)
    if known_reset(directory) != reset.id:
        raise ResetError(
            f"application {application_id} was reset by {reset.by} at {_clock(reset)}, while this instance was considered dead: its state "
            "is older than the reset. Start it again: it removes the state and rejoins"
        )


def known_reset(directory: StateDirectory) -> str | None:
    """Return the id of the last reset that the folder has seen, None for none. Raises StateDirectoryError."""
    path = _path(directory)
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(f"the file {path}", error) from error


def know_reset(directory: StateDirectory, reset_id: str) -> None:
    """Record that the folder has no state from before this reset. Raises StateDirectoryError."""
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
            "the state of tasks %s in %s is older than the reset by %s at %s, and is removed",
            ", ".join(map(str, tasks)),
            directory.path,
            reset.by,
            _clock(reset),
        )


def _acquire(lock: FolderLock) -> None:
    """Wait for the lock, which another worker of the instance may hold for the same purpose."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            lock.acquire()
            return
        except StateDirectoryLockedError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY_SECONDS)


def _path(directory: StateDirectory) -> Path:
    return directory.path / _FOLDER / _ID


def _clock(reset: Reset) -> str:
    return datetime.fromtimestamp(reset.at_ms / 1000, UTC).isoformat(timespec="seconds")
