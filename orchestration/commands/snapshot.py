"""`penstock snapshot take|list|show|export|delete`: copies of an application's state, as of a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from penstock.orchestration.commands.common import Json, ago_ms, err, explained_interrupt, hint, out, print_json, project, say, table, warn
from penstock.orchestration.commands.run_book import ApplicationName
from penstock.orchestration.database import audit
from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.snapshots.exports import export_root, export_snapshot
from penstock.orchestration.snapshots.taking import TAKE_SECONDS, Progress, delete_snapshots, forget, local_root, take_snapshot
from penstock.runtime.model.errors import StateDirectoryError
from penstock.runtime.snapshots.catalogue import Snapshot, find, find_all, require_complete
from penstock.runtime.snapshots.export_manager import expanded
from penstock.runtime.snapshots.manifest import PartitionOffset
from penstock.runtime.snapshots.opening import place_of
from penstock.runtime.snapshots.places import Place

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Copies of an application's state, as of a commit: take, list, show, export and delete them.

A snapshot is taken while the application runs on. It is made of hard links, so it takes milliseconds and, at first, no space. It is
**complete** when every task that has stores is in it; only complete ones are ever read, by Spark, by seeds and by this command.

**Examples**

`penstock snapshot take flight-board` takes one, and exports it if `streams.toml` declares where to.

`penstock snapshot list flight-board` shows those that are kept; `--at s3://bucket/penstock` those that were exported there.

`penstock snapshot export flight-board --to s3://bucket/penstock` copies the newest one. Cut off, it continues when it is run again.

Each task is as of one commit of its own. Between tasks there is no common cut: what one task has written to a repartition topic, the
next may not have read yet.
""",
)

At = Annotated[str | None, typer.Option("--at", help="URI or path of exported snapshots. Default: the snapshots of this machine.")]
SnapshotId = Annotated[str | None, typer.Argument(help="The snapshot's id. Default: the newest complete one.")]


@app.command()
def take(
    application: ApplicationName,
    export: Annotated[bool, typer.Option("--export/--no-export", help="Also export it, if streams.toml declares a place.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds allowed for all tasks together.")] = TAKE_SECONDS,
) -> None:
    """Take a snapshot of all tasks and wait until it is complete.

    Processing continues meanwhile. A task that moves or is being restored is asked again until the time is up; the message then names the
    missing tasks. An incomplete snapshot is never read.
    """
    with project() as operations:
        declared = operations.applications.named(application)
        half = "there is no new snapshot; the files that tasks have written for it are not used"
        with explained_interrupt(half), _bar("Tasks", MofNCompleteColumn()) as progress:
            snapshot = take_snapshot(operations, declared, actor=audit.this_user(), timeout_s=timeout, progress=progress)
        say(f"{snapshot.id} is complete: {len(snapshot.tasks)} tasks, {_size(snapshot.manifest.bytes)}, at {snapshot.place}")
        _print_left_out(snapshot)
        if not snapshot.manifest.settled:
            unsettled = "records were in transit between tasks, so the application cannot start with it after a reset"
            hint(f"{unsettled} (`penstock docs snapshots`)")
        if export and declared.snapshots.export is not None:
            _export(operations, declared, snapshot.id, None)


@app.command("list")
def list_(application: ApplicationName, at: At = None, as_json: Json = False) -> None:
    """List the complete snapshots, the newest first. The exit status is 1 if the manifest of one cannot be read."""
    with project() as operations:
        root = _root(operations, operations.applications.named(application), at)
        unreadable: list[StateDirectoryError] = []
        found = find_all(root, unreadable.append)[::-1]
        if as_json:
            print_json([_brief(snapshot) for snapshot in found])
        elif found:
            out.print(_listed(found))
        elif not unreadable:
            way = f"Take one: penstock snapshot take {application}" if at is None else "Copy one there: penstock snapshot export"
            say(f"no complete snapshot of {application} at {root}. {way}")
        for error in unreadable:
            err.print(str(error), style="red", markup=False)
        if unreadable:
            raise typer.Exit(1)


def _listed(found: Sequence[Snapshot]) -> Table:
    shown = table("snapshot", "taken", "tasks", "size", "stores")
    for snapshot in found:
        manifest = snapshot.manifest
        shown.add_row(snapshot.id, ago_ms(manifest.at_ms), str(len(manifest.tasks)), _size(manifest.bytes), ", ".join(manifest.stores))
    return shown


@app.command()
def show(application: ApplicationName, snapshot: SnapshotId = None, at: At = None, as_json: Json = False) -> None:
    """Show a snapshot: its tasks and their location, its stores, and its offsets."""
    with project() as operations:
        declared = operations.applications.named(application)
        found = find(_root(operations, declared, at), snapshot)
        if as_json:
            print_json(_whole(found))
            return
        out.print(f"[bold]{found.id}[/bold]  {ago_ms(found.manifest.at_ms)}, {_size(found.manifest.bytes)}, at {found.place}")
        tasks = table("task", "instance", "stores", "place")
        for task in found.tasks:
            part = found.task(task)
            tasks.add_row(task, part.instance, ", ".join(store.name for store in part.stores), str(found.task_place(task)))
        out.print(tasks)
        offsets = table("partition", "next offset", "of")
        for what, positions in (("input", found.manifest.inputs), ("changelog", found.manifest.changelogs)):
            for each in positions:
                offsets.add_row(f"{each.topic}-{each.partition}", str(each.next_offset), what)
        out.print(offsets)
        _print_left_out(found)


@app.command()
def export(
    application: ApplicationName,
    snapshot: SnapshotId = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="A URI (file, s3, gs, hdfs, …) or an absolute path. Default: `export` of streams.toml."),
    ] = None,
) -> None:
    """Copy a complete snapshot to another place; it is then at `<to>/<application>/<snapshot>/`.

    The instances copy their own files, in the background and at the lowest priority. Every file gets a checksum. An interrupted copy
    continues when this is run again; it is never read before it is complete.
    """
    with project() as operations:
        _export(operations, operations.applications.named(application), snapshot, to)


@app.command()
def delete(
    application: ApplicationName,
    snapshots: Annotated[list[str], typer.Argument(help="Ids of snapshots.")],
    at: At = None,
) -> None:
    """Delete snapshots: of this machine and its instances, or with `--at` those that were exported to a place."""
    with project() as operations:
        declared = operations.applications.named(application)
        if at is None:
            delete_snapshots(operations, declared, snapshots, actor=audit.this_user())
        else:
            root = _root(operations, declared, at)
            for name in snapshots:
                require_complete(root, name)
            for name in snapshots:
                forget(root, name)
        say(f"deleted {', '.join(snapshots)}")


def _export(operations: Operations, application: Application, snapshot: str | None, to: str | None) -> None:
    cut_off = "the copy is incomplete and is not used. `penstock snapshot export` continues it"
    with explained_interrupt(cut_off), _bar("Export", DownloadColumn(), TimeRemainingColumn()) as progress:
        found = export_snapshot(operations, application, actor=audit.this_user(), snapshot_id=snapshot, uri=to, progress=progress)
    say(f"{found.id} is exported to {found.place}")


def _root(operations: Operations, application: Application, at: str | None) -> Place:
    return local_root(operations, application) if at is None else place_of(expanded(export_root(application, at)))


@contextmanager
def _bar(what: str, *columns: ProgressColumn) -> Iterator[Progress]:
    """Show a progress bar, on a terminal only."""
    with Bar(TextColumn("{task.description}"), BarColumn(), *columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _print_left_out(snapshot: Snapshot) -> None:
    if snapshot.manifest.left_out:
        stores = ", ".join(snapshot.manifest.left_out)
        warn(f"left out: {stores} (stores of your own kind, whose files only you can copy)")


def _brief(snapshot: Snapshot) -> dict[str, object]:
    manifest = snapshot.manifest
    return {
        "snapshot": snapshot.id,
        "at_ms": manifest.at_ms,
        "tasks": snapshot.tasks,
        "stores": manifest.stores,
        "left_out": manifest.left_out,
        "bytes": manifest.bytes,
        "place": str(snapshot.place),
    }


def _whole(snapshot: Snapshot) -> dict[str, object]:
    def as_json(offsets: list[PartitionOffset]) -> list[dict[str, object]]:
        return [{"topic": each.topic, "partition": each.partition, "next_offset": each.next_offset} for each in offsets]

    manifest = snapshot.manifest
    return {
        **_brief(snapshot),
        "places": {task: str(snapshot.task_place(task)) for task in snapshot.tasks},
        "inputs": as_json(manifest.inputs),
        "changelogs": as_json(manifest.changelogs),
        "settled": bool(manifest.settled),
        "topology_hash": manifest.topology_hash,
    }


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
