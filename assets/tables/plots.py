"""Three small charts of a table: rows over the last materialisations, their growth, and their distribution over tasks."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.orchestration.drawing.bars import Bars, bars

_MOST_TASKS = 64


def plots(table: str, history: Sequence[tuple[str, int]], rows_by_partition: Mapping[int, int]) -> str:
    """Return a picture in Markdown. `history`: time (a short text) and number of rows, newest last, which is the table's current state."""
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
    """Return the ratio of the fullest task to the average: 1 if all tasks have the same number of rows; 0 for a table without rows."""
    total = sum(rows_by_partition.values())
    return max(rows_by_partition.values()) * len(rows_by_partition) / total if total else 0.0


def _tasks(rows_by_partition: Mapping[int, int]) -> tuple[list[str], list[int]]:
    """Return a bar per task; with very many tasks only the fullest, which are the relevant ones."""
    found = sorted(rows_by_partition.items())
    if len(found) > _MOST_TASKS:
        found = sorted(sorted(found, key=lambda entry: -entry[1])[:_MOST_TASKS])
    return [str(partition) for partition, _ in found], [rows for _, rows in found]
