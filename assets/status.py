"""The state of each application now: an external asset, `<application>/status`, observed each minute, and the pages of its instances.

Its overview begins with one sentence, and a table of all instances. (Rejected: observations of `<application>/instances` alone. Dagster's
overview of an asset that is materialised shows its last materialisation, and plots mix the partitions: an operator saw RUNNING and lag 0 of
an instance that had been drained.)

The number of observations is bounded: up to `A_MINUTE` all are written each minute. Beyond that the applications take turns, and one whose
sentence has changed, or the state of an instance, is observed at once. Those of a change stay in Dagster's history; the others are deleted
after a day (`orchestration.dagster.day_events`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from penstock.orchestration.dagster import live_metadata
from penstock.orchestration.dagster.names import instances_key, status_key
from penstock.orchestration.database.models import Task
from penstock.orchestration.health.figures import NEVER_STARTED, Figures, Report
from penstock.runtime.model.states import TaskKind

A_MINUTE = 60
"""Maximum number of observations in a minute in which nothing has changed, roughly."""
_COLUMNS = {"instance": "string", "state": "string", "tasks": "string", "lag": "int", "MiB": "int"}
"""As many as a page of 1440 pixels has room for; an instance's page has all figures."""


def status_spec(application_id: str, group: str) -> dg.AssetSpec:
    """Return the asset that shows an application's state. `group`: its name in Dagster."""
    return dg.AssetSpec(
        status_key(application_id),
        deps=[instances_key(application_id)],
        group_name=group,
        kinds={"kafka"},
        description=f"The state of `{application_id}` now, and of all its instances. Observed by `instance_checks_each_minute`.",
    )


def is_due(report: Report, application_id: str, expected: int) -> bool:
    """Return True if an application is to be observed in this minute. `expected`: the observations of a minute, if all were written."""
    turns = -(-expected // A_MINUTE)
    minute = int(report.at.timestamp()) // 60
    return report.changed or minute % turns == zlib.crc32(application_id.encode()) % turns


def observations(
    application_id: str, report: Report, tasks: Mapping[str, Sequence[Task]], *, everything: bool = False
) -> Iterator[dg.AssetObservation]:
    """Return an observation of the application, and one of each instance that runs or whose state may have changed, or with `everything` of
    each that was ever started. `tasks`: those that each runs."""
    yield dg.AssetObservation(
        status_key(application_id),
        description=live_metadata.sentence(report.sentence),
        metadata={
            "1 now": dg.MetadataValue.md(live_metadata.sentence(report.sentence)),
            "2 instances": _instances(report),
            "3 as of": dg.MetadataValue.timestamp(report.at),
            **live_metadata.numbers(report.total.numbers),
            "records_per_s_of": live_metadata.text(report.rates_of),
        },
    )
    for name, figures in report.instances.items():
        if figures.runs or ((everything or report.changed) and figures.state != NEVER_STARTED):
            metadata = live_metadata.instance_metadata(figures, tasks.get(name, ()), report.at)
            said = live_metadata.sentence(f"{name}: {figures.state}")
            yield dg.AssetObservation(instances_key(application_id), description=said, partition=name, metadata=metadata)


def _instances(report: Report) -> dg.TableMetadataValue:
    records = [
        dg.TableRecord(
            {
                "instance": name,
                "state": figures.state,
                "tasks": _tasks(figures),
                "lag": figures.lag,
                "MiB": None if figures.resident_bytes is None else figures.resident_bytes >> 20,
            }
        )
        for name, figures in report.instances.items()
    ]
    return live_metadata.table(_COLUMNS, records)


def _tasks(figures: Figures) -> str:
    if not figures.known:
        return "unknown"
    counts = [f"{number} {kind.value.lower()}" for kind in TaskKind if (number := figures.tasks.get(kind.value, 0))]
    return ", ".join([*counts, *([f"{figures.paused} paused"] if figures.paused else [])]) or "none"
