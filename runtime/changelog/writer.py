"""Changelog records of stores' updates.

A changelog is `<application.id>-<store>-changelog`, with one partition per task. An update is written once per key and commit
(`EngineStore.changelog_records` folds them), with the timestamp of the last update of the key, and as a tombstone if it was deleted.

Under at-least-once, records of a commit that was rolled back stay in the changelog. Mostly the input is processed again and overwrites
them; where a handler drops an input record meanwhile, nothing does. So the next commit writes the committed values of these keys again.
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

    def __init__(self, application_id: str, task: TaskId, stores: list[EngineStore], *, rolls_back: bool) -> None:
        """`rolls_back`: readers do not see the records of a commit that was rolled back."""
        self._logged = [(changelog_partition(application_id, store.name, task), store) for store in stores if store.logging_enabled]
        self._rolls_back = rolls_back
        self._sent: dict[str, list[ChangelogRecord]] = {}
        """Records of the commit that is under way, by store."""
        self._stale: dict[str, dict[object, ChangelogRecord]] = {}
        """Records of commits that were rolled back, by store and identity."""

    def pending(self) -> Iterator[ChangelogRows]:
        """Yield the updates since the last commit, for each changelog that has any; of a store with headers, for each of these."""
        for partition, store in self._logged:
            rows = list(store.changelog_records())
            if not self._rolls_back:
                if again := self._committed_again(store, rows):
                    rows = [*again, *rows]
                self._sent[store.name] = rows
            if rows and store.keeps_headers:
                for headers, group in by_headers(rows):
                    yield ChangelogRows(partition, group, headers)
            elif rows:
                yield ChangelogRows(partition, rows, store.changelog_headers)

    def _committed_again(self, store: EngineStore, rows: list[ChangelogRecord]) -> list[ChangelogRecord]:
        """Return the committed values of what was rolled back, except of what `rows` overwrite."""
        stale = self._stale.get(store.name)
        if not stale:
            return []
        written = {_identity(store, row) for row in rows}
        return list(store.committed_records([row for identity, row in stale.items() if identity not in written]))

    def committed(self) -> None:
        """Note that the broker has committed what `pending` returned."""
        self._sent.clear()
        self._stale.clear()

    def rolled_back(self) -> bool:
        """Note that what `pending` returned was rolled back. Return True if it stays in a changelog, so that a commit must follow."""
        for _, store in self._logged:
            for row in self._sent.get(store.name, ()):
                self._stale.setdefault(store.name, {})[_identity(store, row)] = row
        self._sent.clear()
        return bool(self._stale)


def _identity(store: EngineStore, row: ChangelogRecord) -> object:
    """Return what a later record must have in common with this one to replace it."""
    return row[0] if store.folded_by_key else (row[0], row[2])
