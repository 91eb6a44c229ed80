"""The record of the state's shape on the coordination topic: who may write it, and when.

A topology is compared with the record before anything is opened (`previous_run.py`). Another version may be accepted after that, so a
worker compares again when it is granted tasks, and opens its stores once the valid record covers what it will write. A refused topology, at
the start or here, writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from penstock.runtime.coordination.log import CoordinationLog
from penstock.runtime.coordination.records import StateShape, encode
from penstock.runtime.coordination.registry import Registry
from penstock.runtime.model.errors import TopologyError
from penstock.runtime.topology.shape import TopologyShape, merged, misfits

AGAIN_AFTER_MS = 3_000
"""A record that is not read back within this time is written again."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A topology that fits the state. `previous`: the recorded shape with which it was compared, None if there was none; `now`: the
    topology's own shape; `kept`, `unread`: the stores and the unprocessed repartition records that are left of the previous one."""

    application_id: str
    previous: TopologyShape | None
    now: TopologyShape
    kept: Collection[str] = ()
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def changelogs(self) -> set[str]:
        """Changelogs of the recorded state."""
        stores = () if self.previous is None else self.previous.stores
        return {store.changelog for store in stores if store.changelog and not store.of_source}

    def shape(self, recorded: TopologyShape | None) -> TopologyShape:
        """Return the shape to record when `recorded` is the current one. Raises TopologyError if another topology was accepted meanwhile
        and this one does not fit what that may have written."""
        if recorded is None or recorded == self.previous:
            return merged(self.previous, self.now, self.kept, self.unread)
        later = self.on(recorded)
        if found := misfits(recorded, self.now, later.kept, later.unread):
            changes = "".join(f"\n  {text}" for text in found)
            raise TopologyError(
                f"another version of application {self.application_id} was started at the same time, and this one does not fit its "
                f"state:{changes}\nStart the version that is running, or stop it and see `penstock docs changing`"
            )
        return merged(recorded, self.now, later.kept, later.unread)

    def on(self, recorded: TopologyShape) -> Acceptance:
        """Return the acceptance of the same topology on a recorded state of which everything may be left."""
        kept = [store.name for store in recorded.stores]
        return replace(self, previous=recorded, kept=kept, unread=dict.fromkeys(recorded.repartitions, 1))


class StateRecord:
    """One worker's writes to the record."""

    def __init__(self, acceptance: Acceptance, registry: Registry, log: CoordinationLog) -> None:
        self._acceptance = acceptance
        self._registry = registry
        self._log = log
        self._written: StateShape | None = None
        self._written_ms = 0
        self._covered = False

    def covers(self, identity: str, now_ms: int) -> bool:
        """Return True once the valid record covers this worker's topology, so that it may open stores; write the record if it does not.
        Never waits. `identity`: the worker's identity; `now_ms`: monotonic time. Raises TopologyError."""
        if self._covered:
            return True
        holds = self._registry.state
        if self._is_on_its_way(holds, now_ms):
            return False
        recorded = None if holds is None else holds.shape
        wanted = self._acceptance.shape(recorded)
        if wanted == recorded:
            self._covered = True
            self._remove_previous(holds)
            return True
        version, written = 1 if holds is None else holds.version + 1, self._written
        attempt = written.attempt + 1 if written is not None and written.version == version else 0
        seed = "" if holds is None else holds.seed
        self._written = StateShape(version=version, shape=wanted, by=identity, attempt=attempt, seed=seed)
        self._written_ms = now_ms
        self._log.append(self._written.key, encode(self._written))
        return False

    def _is_on_its_way(self, holds: StateShape | None, now_ms: int) -> bool:
        written = self._written
        unread = written is not None and (holds is None or holds.version < written.version)
        return unread and now_ms - self._written_ms < AGAIN_AFTER_MS

    def _remove_previous(self, holds: StateShape | None) -> None:
        """Delete the older records that this worker's record has replaced."""
        written = self._written
        if holds is not None and written is not None and (holds.version, holds.by) == (written.version, written.by):
            for shape in list(self._registry.shapes.values()):
                if shape.version < holds.version:
                    self._log.append(shape.key, None)
