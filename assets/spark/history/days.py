"""Runs that end with a day, each kept for the next one, which goes on with its state and reads only the records since then.

<seed>/.days/<program>-<until>.json     `<program>`: a name for the program, its configuration and its inputs
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from penstock.assets.spark.history.errors import HistoryError
from penstock.assets.spark.history.inputs import Bounds
from penstock.runtime.snapshots.manifest import encoded
from penstock.runtime.snapshots.places import Place

DAYS = ".days"


class Offset(msgspec.Struct, frozen=True):
    """Range of a partition that a run reads: from `start` on, before `end`."""

    topic: str
    partition: int
    start: int
    end: int


def offsets_of(bounds: Bounds) -> list[Offset]:
    """Return the ranges of all partitions."""
    return [
        Offset(topic, number, bounds.starts[topic][number], end)
        for topic, ends in sorted(bounds.ends.items())
        for number, end in sorted(ends.items())
    ]


def bounds_of(offsets: Sequence[Offset], until_ms: int | None) -> Bounds:
    """Return the bounds that `offsets_of` was given."""
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for each in offsets:
        starts.setdefault(each.topic, {})[each.partition] = each.start
        ends.setdefault(each.topic, {})[each.partition] = each.end
    return Bounds(starts, ends, until_ms)


class Day(msgspec.Struct, frozen=True):
    """A complete run. `next_offsets`: of the topics that tasks read. `rows`: the number of records before its end, of inputs that are
    tables: another number later means that records of that time were added or removed since."""

    seed: str
    offsets: list[Offset]
    until_ms: int | None
    next_offsets: dict[str, dict[int, int]]
    rows: dict[str, int]

    def followed(self, bounds: Bounds, topic: str) -> Bounds:
        """Return the bounds of the next day's run for an input. Raises HistoryError if it is the topic, and has lost records in between."""
        begins = self.next_offsets.get(topic)
        if begins is None:  # of a global store, which is filled from the first record on
            return bounds
        for partition, begin in begins.items():
            if topic not in self.rows and (start := bounds.starts[topic].get(partition, 0)) > begin:
                raise HistoryError(
                    f"records of {topic}-{partition} from {begin} to {start} were deleted by retention after the day before: with "
                    "`restart` the run begins with the first record that is there; a table of the archive as input has all"
                )
        starts = {**bounds.starts, topic: begins}
        return replace(bounds, starts=starts, since_ms=self.until_ms, continues=True, topic_starts=bounds.starts)


class Days:
    """The kept runs of one program."""

    def __init__(self, seeds: Place, program: str) -> None:
        self._folder = seeds / DAYS
        self._program = program

    def _file(self, until: str) -> Place:
        return self._folder / f"{self._program}-{re.sub(r'[^0-9A-Za-z]+', '-', until)}.json"

    def read(self, until: str) -> Day | None:
        """Return the run that ended at a time; None if there is none, or its file is of another version."""
        data = self._file(until).read()
        try:
            return None if data is None else msgspec.json.decode(data, type=Day)
        except msgspec.DecodeError:
            return None

    def write(self, until: str, day: Day) -> None:
        """Keep a run, in place of an earlier one with the same end."""
        self._file(until).write(iter([encoded(day)]))
