"""Metadata of what an instance does now, under the same names wherever they are shown. A page of a partition shows the newest value of each
name, so an event that left a name out would leave an old value there: what is not known is reported as unknown.

A page of 1440 pixels has room for tables of five columns, and Dagster does not break words: `breakable` marks where a browser may break
long ones. `penstock` removes the marks from what is pasted into a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from penstock.orchestration import MAY_BREAK
from penstock.orchestration.database.models import Task
from penstock.orchestration.health.figures import Figures
from penstock.runtime.model.states import TaskKind

Metadata = Mapping[str, dg.MetadataValue]
_WHOLE, _WHOLE_IN_TABLE = 30, 12
"""Length up to which a word stays in one piece: in a row of a page, and in a column of a table within such a row."""
_WIDEST_NAME = 40
"""Length up to which the name of a file, or a part of an address, is not wider than the page."""


def breakable(value: str, whole: int = _WHOLE) -> str:
    """Return a text with a zero-width space wherever a word longer than `whole` may be broken, preferably after punctuation. Browsers break
    words at spaces, hyphens, and slashes themselves."""
    ends = "._=&:,;"
    piece = re.compile(rf"[^{ends}]{{0,{whole - 1}}}[{ends}]|[^{ends}]{{1,{whole}}}")
    return re.sub(rf"[^\s/?-]{{{whole + 1},}}", lambda word: MAY_BREAK.join(piece.findall(word[0])), value)


def text(value: str) -> dg.TextMetadataValue:
    """Return a text that is not wider than the page."""
    return dg.MetadataValue.text(breakable(value))


_CODE = re.compile(r"(?<![`\\])(`[^`]+`)(?!`)")
_ESCAPED = re.compile(r"^[#>+-]|^\d+[.)]|[*`<\[\]~]|\\(?=[!-/:-@\[-`{-~])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown reads as markup within a line, outside of code: `_` not inside of words, as in names of tasks."""


def sentence(value: str) -> str:
    """Return a text as a description, which Dagster shows as Markdown: in one line, with nothing in it that Markdown would not show as it
    is. Errors may quote records. A part between two backquotes stays code."""
    parts = _CODE.split(" ".join(breakable(value).split()))
    return "".join(
        part if number % 2 else _ESCAPED.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", part) for number, part in enumerate(parts)
    )


def path(value: str) -> dg.MetadataValue:
    """Return a path, which Dagster offers to copy; one with a name that is too wide for the page as text."""
    return text(value) if _is_wide(value) else dg.MetadataValue.path(value)


def link(address: str, name: str) -> dg.MetadataValue:
    """Return a link within Dagster, which shows its address; one that is too wide for the page with its name instead."""
    return dg.MetadataValue.md(f"[{breakable(name)}]({address})") if _is_wide(address) else dg.MetadataValue.url(address)


def _is_wide(value: str) -> bool:
    return max(map(len, re.split("[/?-]", value))) > _WIDEST_NAME


def lines(value: str) -> dg.MarkdownMetadataValue:
    """Return a text of several lines, each of which is wrapped at the page's edge: a block of code in Markdown is not, and widens the page.
    Indentation stays, empty lines do not. No line can end its mark-up."""
    fence = "`" * (1 + max(map(len, re.findall("`+", value)), default=0))
    shown = [line.rstrip() for line in re.split("\r\n?|\n", value) if line.strip()]  # an empty line would end the paragraph
    # Dagster cuts white space at the beginning of a line off, without a character in front of it
    indents = ((line, "\xa0" * (len(line) - len(line.lstrip()))) for line in shown)
    indented = ((MAY_BREAK + indent if indent else "") + breakable(line.lstrip()) for line, indent in indents)
    return dg.MetadataValue.md("  \n".join(f"{fence} {line} {fence}" for line in indented))


def instance_metadata(figures: Figures, tasks: Sequence[Task], at: datetime) -> Metadata:
    """Return the state and figures of an instance, and a row per task. `tasks`: those that it runs, or ran last, copies included."""
    shown = tasks if figures.runs else ()
    counts: dict[str, int | float | None] = {
        "task_count": len(shown),
        "workers": len({task.worker for task in shown}),
        "records_to_learn": sum(task.lag or 0 for task in shown if task.kind == TaskKind.LEARNER.value),
    }
    return {
        "state": text(figures.state),
        "as_of": dg.MetadataValue.timestamp(at),
        **numbers(figures.numbers),
        "tasks": _tasks_table(shown, at),
        **numbers(counts if figures.known else dict.fromkeys(counts)),
    }


def numbers(named: Mapping[str, int | float | None]) -> Metadata:
    """Return figures as numbers, which Dagster plots, and those that are None as unknown, which leaves a gap in the plot."""
    return {name: _number(value) for name, value in named.items()}


def _number(value: int | float | None) -> dg.MetadataValue:
    if value is None:
        return dg.MetadataValue.text("unknown")
    return dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)


def _tasks_table(tasks: Sequence[Task], at: datetime) -> dg.TableMetadataValue:
    """Return a row per task. `lag`: an active task's on its input, a copy's on its changelogs. `checkpoint_s`: seconds from its last
    checkpoint to `at`."""
    columns = {"task": "string", "kind": "string", "state": "string", "lag": "int", "checkpoint_s": "float"}
    several = len({task.worker for task in tasks}) > 1
    records = [
        dg.TableRecord(
            {
                "task": f"{task.task} (worker {task.worker})" if several else task.task,
                "kind": task.kind,
                "state": _state(task),
                "lag": task.lag,
                "checkpoint_s": None if task.checkpoint_at is None else round((at - task.checkpoint_at).total_seconds(), 1),
            }
        )
        for task in tasks
    ]
    return table(columns, records)


def _state(task: Task) -> str:
    """Return the state of a task, with the record at which it is paused, or with the part of its changelogs that a copy has read."""
    if task.paused_topic is not None:
        return f"{task.state} at {task.paused_topic}-{task.paused_partition}@{task.paused_offset}"
    percent = learned_percent(task)
    return task.state if percent is None else f"{task.state}, {percent} % read"


def table(columns: Mapping[str, str], records: Sequence[dg.TableRecord]) -> dg.TableMetadataValue:
    """Return a table with columns of these types, at most five."""
    records = [
        dg.TableRecord({name: breakable(cell, _WHOLE_IN_TABLE) if isinstance(cell, str) else cell for name, cell in record.data.items()})
        for record in records
    ]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()]))


def learned_percent(task: Task) -> float | None:
    """Return the percentage of its changelogs that a copy has read; None for an active task, and if the end is not known."""
    if task.kind == TaskKind.ACTIVE.value or task.lag is None or not task.end_sum:
        return None
    return round(100 * (1 - task.lag / task.end_sum), 1)
