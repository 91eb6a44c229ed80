"""Positions of the copies of tasks' state at an instance, as its members report them.

There are two sources: an open store has its own position; for a folder that no member has open, a member reports the sum in the task's
`.checkpoint`. The sum may be old, at the member itself and even more at a sibling, which shares the folder but is not notified of changes:
a copy that was wiped since is older than its last sum. So the position of an open store takes precedence over every sum (KIP-892, "Offsets
for Consumer Rebalances"), and the latest of several reports is used.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime.changelog.checkpoint import FILE_NAME, read_checkpoint
from penstock.runtime.coordination.registry import Known, Registry
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.states import TaskState
from penstock.runtime.stores.directory import StateDirectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sum of a file's offsets, with its modification time (ns)."""

    position: int
    modified_ns: int


class DiskPositions:
    """Sums of the `.checkpoint` files in a state directory. A file is read again after it has changed."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._known: dict[TaskId, _Sum] = {}

    def read(self) -> dict[str, int]:
        """Return the sum of changelog offsets of each task that has a folder; 0 if it has no file."""
        self._known = {task: self._sum(task) for task in self._directory.tasks_on_disk()}
        return {str(task): each.position for task, each in self._known.items()}

    def _sum(self, task: TaskId) -> _Sum:
        folder = self._directory.path / str(task)
        modified_ns = _modified_ns(folder)
        known = self._known.get(task)
        if known is not None and known.modified_ns == modified_ns:
            return known
        try:
            offsets = read_checkpoint(folder)
        except StreamsError as error:
            logger.warning("task %s: %s", task, error)
            offsets = {}
        return _Sum(sum(offset for offset in offsets.values() if offset is not None), modified_ns)


def _modified_ns(folder: Path) -> int:
    try:
        return (folder / FILE_NAME).stat().st_mtime_ns
    except OSError:
        return -1


def positions_at(registry: Registry, identity: str) -> dict[TaskId, int]:
    """Return the positions of the tasks of which a member has a copy, including its siblings' copies in the same folder, but not their
    state in memory."""
    instance = registry.members[identity].member.instance
    siblings = [known for known in registry.members.values() if known.member.instance == instance]
    newest = _newest_incarnations(siblings)
    sums: dict[str, int] = {}
    opened: dict[str, int] = {}
    for known in sorted(siblings, key=lambda known: known.written_ms):
        member, successor = known.member, newest[known.member.worker].member
        if member is successor:
            sums.update(member.disk)
        for task, report in member.tasks.items():
            is_there = member is successor or task in successor.disk or task in successor.tasks
            if is_there and report.state is not TaskState.CREATED and (member.identity == identity or not report.in_memory):
                opened[task] = report.position
    return {TaskId.parse(task): position for task, position in {**sums, **opened}.items()}


def _newest_incarnations(siblings: list[Known]) -> dict[int, Known]:
    """Return the latest incarnation of each worker: it has read the folder after the earlier ones had ended."""
    newest: dict[int, Known] = {}
    for known in sorted(siblings, key=lambda known: known.member.incarnation):
        newest[known.member.worker] = known
    return newest
