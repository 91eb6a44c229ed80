"""The machine of a start: room and rights in the folder of the state, and open files."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.runtime.topology.internal_topics import task_count
from penstock.runtime.topology.topology import Topology

_NEEDED_BYTES = 256 * 2**20
"""Below this, a start has no room for its first write buffers and logs."""
_FEW_BYTES = 5 * 2**30
_FEW_PART = 0.1
_FILES_PER_STORE = 11
"""docs/state.md, Memory."""
_OTHER_FILES = 500
"""Libraries, logs, and the connections of the Kafka clients."""


def folder(path: Path) -> Finding:
    """Return whether a folder that a start creates can be created and written, and has room."""
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # False in a folder that may not be read
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        why = "may not be written by this user" if there.is_dir() else "is not a folder"
        return Finding("state folder", Outcome.WRONG, f"{there} {why}", "name another home: PENSTOCK_HOME, or give the rights")
    usage = shutil.disk_usage(there)
    text = f"{path}: {_size(usage.free)} of {_size(usage.total)} are free"
    remedy = "make room, or name another home: PENSTOCK_HOME"
    if usage.free < _NEEDED_BYTES:
        return Finding("state folder", Outcome.WRONG, text, remedy)
    if usage.free < min(_FEW_BYTES, _FEW_PART * usage.total):
        return Finding("state folder", Outcome.WARNING, text, remedy)
    return Finding("state folder", Outcome.OK, text)


def open_files(topology: Topology | None = None, partitions: Mapping[str, int] | None = None) -> Finding:
    """Return whether this process's limit of open files suffices for one instance that has all tasks. `partitions`: of the topology's
    topics."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    stores = sum(_stores(topology, partitions)) if topology is not None and partitions else 0
    needed = _FILES_PER_STORE * stores + _OTHER_FILES
    text = f"{limit} may be open" + (f"; {stores:,} stores, if one instance has them all, need about {needed:,}" if stores else "")
    if hard != resource.RLIM_INFINITY and hard < needed:
        return Finding("open files", Outcome.WARNING, text, "raise the limit: ulimit -Hn, LimitNOFILE= of systemd; or run more instances")
    return Finding("open files", Outcome.OK, text)


def _stores(topology: Topology, partitions: Mapping[str, int]) -> Iterator[int]:
    for part in topology.sub_topologies():
        if part.source_topics and all(topic in partitions for topic in part.source_topics):
            yield len(part.stores) * task_count(part, partitions)


def _size(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
