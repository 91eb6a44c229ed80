"""Partitions of a table by days, and the days of a run."""

from __future__ import annotations

from datetime import date, timedelta

import dagster as dg

from penstock.orchestration.declarations.state_tables import Days


def partitions(days: Days | None) -> dg.DailyPartitionsDefinition | None:
    """Return a partition for each day (UTC), including today: its windows exist as soon as they have begun."""
    if days is None:
        return None
    first = days.first.isoformat()
    if days.last is None:
        return dg.DailyPartitionsDefinition(first, end_offset=1)
    return dg.DailyPartitionsDefinition(first, (days.last + timedelta(days=1)).isoformat())


def asked_for(context: dg.AssetExecutionContext) -> tuple[date, date] | None:
    """Return the first and the last day of a run; None if the table has no days."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return None
    keys = context.partition_key_range
    return date.fromisoformat(keys.start), date.fromisoformat(keys.end)
