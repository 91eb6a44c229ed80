"""What a rehearsal begins with: the snapshot, and the code of the build that is in operation."""

from __future__ import annotations

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.rehearsals.processes import Build, RehearsalError
from penstock.orchestration.rehearsals.rehearsal import NEW, RUNNING
from penstock.orchestration.snapshots.exports import export_root
from penstock.runtime.instance.build import kept_code
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.catalogue import Snapshot, find, find_all
from penstock.runtime.snapshots.opening import place_of


def chosen_snapshot(
    paths: ProjectPaths, application: Application, now_ms: int, *, since_ms: int | None = None, where: str | None = None
) -> tuple[Snapshot, str | None]:
    """Return the snapshot to begin with, and a note if it is not as old as it should be. `since_ms`: the newest one that is at least so
    old; None: the newest. `where`: an id, or the path or URI of a snapshot. Raises RehearsalError if there is none."""
    if where is not None and ("/" in where or "://" in where):
        return find(where), None
    found = all_snapshots(paths, application)
    if where is not None:
        named = [each for each in found if each.id == where]
        if not named:
            known = ", ".join(each.id for each in found[-5:]) or "none"
            raise RehearsalError(f"there is no complete snapshot {where} of {application.id}; there are {known}")
        return named[-1], None
    if not found:
        raise RehearsalError(
            f"a rehearsal begins with the state of a snapshot, and {application.id} has none. penstock snapshot take {application.id} "
            f"takes one; [applications.{application.id}.snapshots] every-minutes in streams.toml takes them regularly"
        )
    if since_ms is None:
        return found[-1], None
    old = [each for each in found if each.manifest.at_ms <= now_ms - since_ms]
    if old:
        return old[-1], None
    age = (now_ms - found[0].manifest.at_ms) / 60_000
    return found[0], f"the oldest snapshot is of {age:.0f} min ago: only the records since then are rehearsed"


def all_snapshots(paths: ProjectPaths, application: Application) -> list[Snapshot]:
    """Return the application's complete snapshots, those of its instances and the exported ones, oldest first."""
    unreadable: list[StateDirectoryError] = []
    roots = [place_of(paths.snapshots(application.id))]
    if application.snapshots.export is not None:
        roots.append(place_of(export_root(application)))
    found = {each.id: each for root in reversed(roots) for each in find_all(root, unreadable.append) if each.manifest.kind == "snapshot"}
    return [found[name] for name in sorted(found)]


def running_build(paths: ProjectPaths, application: Application) -> tuple[Build, str | None]:
    """Return the build in operation, and a note if it is not known exactly. Instances keep a copy of the code that
    they run; of several copies, the one made last."""
    copies = [kept for name in application.instances if (kept := kept_code(paths.state_dir(name) / application.id)) is not None]
    if copies:
        return Build(RUNNING, application.factory, max(copies, key=lambda copy: copy.stat().st_mtime)), None
    note = f"no instance on this machine has kept its code: the running build is {application.factory} as it is in the project now"
    return Build(RUNNING, application.factory), note


def builds(paths: ProjectPaths, application: Application, factory: str | None) -> tuple[Build, Build, str | None]:
    """Return the build in operation and the new one, and a note if the first is not known exactly. Raises RehearsalError if the two are the
    same."""
    running, note = running_build(paths, application)
    if running.code is None and factory in (None, application.factory):
        raise RehearsalError(
            f"there is nothing to compare: no instance of {application.id} on this machine has kept a copy of the code that it runs, and "
            f"--factory names no other build than {application.factory}. Name one (--factory new.module:build), or start an instance with "
            "this version of Penstock before the code changes"
        )
    return running, Build(NEW, factory or application.factory), note
