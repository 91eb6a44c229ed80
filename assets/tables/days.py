"""The partitions of a table by days, and which of them a run is for."""

from __future__ import annotations

from datetime import date, timedelta

import dagster as dg

from orchestration.state_tables import Days


def partitions(days: Days | None) -> dg.DailyPartitionsDefinition | None:
    """A partition for each day (UTC), today's included: its windows are there as soon as they are begun."""
    if days is None:
        return None
    first = days.first.isoformat()
    if days.last is None:
        return dg.DailyPartitionsDefinition(first, end_offset=1)
    return dg.DailyPartitionsDefinition(first, (days.last + timedelta(days=1)).isoformat())


def asked_for(context: dg.AssetExecutionContext) -> tuple[date, date] | None:
    """The first and the last day that a run is for; None where the table has no days."""
    if not context.has_partition_key and not context.has_partition_key_range:
        return None
    keys = context.partition_key_range
    return date.fromisoformat(keys.start), date.fromisoformat(keys.end)
