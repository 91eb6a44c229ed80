"""Changelog records of stores' updates.

A changelog is `<application.id>-<store>-changelog`, with one partition per task. An update is written once per key and commit
(`EngineStore.changelog_records` folds them), with the timestamp of the last update of the key, and as a tombstone if it was deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.runtime.model.ids import TaskId, TopicPartition, changelog_topic
from penstock.runtime.model.record import Headers
from penstock.runtime.stores.base import ChangelogRecord, EngineStore
from penstock.runtime.stores.headers import by_headers


class ChangelogRows(NamedTuple):
    """Records for one changelog. `headers` are those of every record that is not a tombstone."""

    partition: TopicPartition
    rows: list[ChangelogRecord]
    headers: Headers | None = None


def changelog_partition(application_id: str, store: str, task: TaskId) -> TopicPartition:
    """Return the changelog partition of this task's part of the store."""
    return TopicPartition(changelog_topic(application_id, store), task.partition)


class ChangelogWriter:
    """Writer of the changelogs of one task's stores."""

    def __init__(self, application_id: str, task: TaskId, stores: list[EngineStore]) -> None:
        self._logged = [(changelog_partition(application_id, store.name, task), store) for store in stores if store.logging_enabled]

    def pending(self) -> Iterator[ChangelogRows]:
        """Yield the updates since the last commit, for each changelog that has any; of a store with headers, for each of these."""
        for partition, store in self._logged:
            rows = list(store.changelog_records())
            if rows and store.keeps_headers:
                for headers, group in by_headers(rows):
                    yield ChangelogRows(partition, group, headers)
            elif rows:
                yield ChangelogRows(partition, rows, store.changelog_headers)
