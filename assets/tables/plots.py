"""Three small charts of a table, drawn into the page: rows over the last materialisations, how they grew, and how tasks share them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise

from orchestration.drawing.bars import Bars, bars

_MOST_TASKS = 64


def plots(table: str, history: Sequence[tuple[str, int]], rows_by_partition: Mapping[int, int]) -> str:
    """A picture in Markdown. `history`: when (a short text) and how many rows, the newest last, which is the table as it is now."""
    charts = [Bars("rows", [at for at, _ in history], [rows for _, rows in history])]
    growth = [(at, rows - before) for (_, before), (at, rows) in pairwise(history)]
    if growth:
        charts.append(Bars("growth", [at for at, _ in growth], [more for _, more in growth]))
    if rows_by_partition:
        names, values = _tasks(rows_by_partition)
        charts.append(Bars(f"rows per task (skew {skew(rows_by_partition):.2f})", names, values))
    drawn = base64.b64encode(bars(charts).encode()).decode()
    return f"![rows, growth and skew of {table}](data:image/svg+xml;base64,{drawn})"


def skew(rows_by_partition: Mapping[int, int]) -> float:
    """The fullest task against the average: 1 where all have as much; 0 for a table without rows."""
    total = sum(rows_by_partition.values())
    return max(rows_by_partition.values()) * len(rows_by_partition) / total if total else 0.0


def _tasks(rows_by_partition: Mapping[int, int]) -> tuple[list[str], list[int]]:
    """A bar per task; of very many the fullest, since those are the ones to look at."""
    found = sorted(rows_by_partition.items())
    if len(found) > _MOST_TASKS:
        found = sorted(sorted(found, key=lambda entry: -entry[1])[:_MOST_TASKS])
    return [str(partition) for partition, _ in found], [rows for _, rows in found]
