"""The rehearsal that a deploy demands (`[applications.NAME.deploy]`), and the last result of any, which Dagster shows.

<home>/rehearsals/<application>.json     the last result (`Last`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.declarations.rehearsal_limits import span_ms
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.orchestration.rehearsals.choice import builds, chosen_snapshot
from penstock.orchestration.rehearsals.processes import RehearsalError
from penstock.orchestration.rehearsals.rehearsal import Comparison, rehearsing
from penstock.orchestration.rehearsals.reporter import Reporter
from penstock.orchestration.rehearsals.verdict import failures, unknown_names
from penstock.runtime.model.clock import Clock, SystemClock


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """A finished rehearsal. `failures`: what differed by more than was allowed. `differences`: for each store and topic rows of both builds
    and the number of differing keys."""

    at_ms: int
    snapshot: str
    records: int
    builds: tuple[str, str]
    failures: list[str]
    differences: list[tuple[str, int, int, int]]
    rejections: tuple[int, int]


def compare(
    paths: ProjectPaths,
    application: Application,
    reporter: Reporter,
    *,
    factory: str | None = None,
    since: str | None = None,
    records: int | None = None,
    snapshot: str | None = None,
    allowed: Mapping[str, str],
    engine: str | None = None,
    clock: Clock | None = None,
) -> tuple[Comparison, list[str]]:
    """Rehearse a build, keep the result, and return it with its failures. `engine`: one of `ENGINES`; None: as declared. Raises
    RehearsalError, StreamsError."""
    clock = clock or SystemClock()
    running, new, unsure = builds(paths, application, factory)
    since_ms = None if since is None else span_ms(since)
    chosen, young = chosen_snapshot(paths, application, clock.wall_ms(), since_ms=since_ms, where=snapshot)
    with rehearsing(paths, application, reporter, clock) as rehearsal:
        found = rehearsal.compare(running, new, chosen, records, engine or application.deploy.rehearse_engine)
    found = replace(found, notes=[*filter(None, (unsure, young)), *found.notes])
    failed = failures(found, allowed)
    _keep(_path(paths, application.id), found, failed, clock.wall_ms())
    return found, failed


def demand(paths: ProjectPaths, application: Application, reporter: Reporter) -> None:
    """Carry out the rehearsal that the application's deploys demand, if any. Raises RefusedError if it fails or is impossible."""
    policy = application.deploy
    if policy.rehearse is None:
        return
    reporter.step(f"rehearses the new code ([applications.{application.id}.deploy] rehearse = {policy.rehearse!r})")
    try:
        found, failed = compare(paths, application, reporter, since=policy.rehearse, records=policy.records or None, allowed=policy.allow)
    except RehearsalError as error:
        raise RefusedError(
            f"nothing was stopped: the rehearsal that the deploy of {application.id} demands cannot pass: {error}"
        ) from error
    unknown = [
        f"[applications.{application.id}.deploy] allow names {name}, which is neither a store nor an output topic of these builds"
        for name in unknown_names(found, policy.allow)
    ]
    for note in (*unknown, *found.notes):
        reporter.step(note)
    if failed:
        raise RefusedError(
            f"nothing was stopped: the rehearsal that the deploy of {application.id} demands has failed:{_listed(failed)}\n"
            f"penstock rehearse {application.id} --since {policy.rehearse} shows the keys. If they are meant to differ, allow it in "
            f'[applications.{application.id}.deploy], for example allow = ["NAME=any"]'
        )


def _listed(texts: Sequence[str]) -> str:
    return "".join(f"\n- {text}" for text in texts)


def _keep(path: Path, found: Comparison, failed: Sequence[str], at_ms: int) -> None:
    last = Last(
        at_ms=at_ms,
        snapshot=found.snapshot,
        records=found.records,
        builds=(str(found.builds[0]), str(found.builds[1])),
        failures=list(failed),
        differences=[(each.label, *each.rows, each.differing) for each in found.differences],
        rejections=(found.reports[0].rejections, found.reports[1].rejections),
    )
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(last))
    partial.replace(path)


def last(paths: ProjectPaths, application_id: str) -> Last | None:
    """Return the last finished rehearsal of an application; None if there was none, or its file is of another version."""
    try:
        return msgspec.json.decode(_path(paths, application_id).read_bytes(), type=Last)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _path(paths: ProjectPaths, application_id: str) -> Path:
    return paths.home / "rehearsals" / f"{application_id}.json"
