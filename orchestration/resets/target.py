"""Start of the input after a reset: `--to earliest|latest|TIME|OFFSETS`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

from penstock.orchestration.database.models import from_ms, to_ms
from penstock.orchestration.kafka.task_commands import RefusedError
from penstock.runtime.coordination.records import Reset
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import NextOffset, TopicPartition

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_OFFSET = re.compile(r"(?P<topic>[\w.-]+):(?P<partition>\d+)=(?P<offset>\d+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Earlier times become this one, which stands for the first record: as timestamps they are negative, and -1 means the end to brokers."""
_EXPECTED = (
    "expected earliest, latest, a time (2026-01-31T12:00:00, in UTC unless it says otherwise), a duration back from now (PT1H, P1D), "
    "offsets (flights:0=100,flights:1=200), or a file of lines topic,partition,offset"
)


class Edge(Enum):
    """End of a topic at which the input may start."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Target:
    """Value of `--to`: an edge, a time, or an offset for each partition. `text`: the value as given."""

    text: str
    to: Edge | datetime | Mapping[TopicPartition, int]

    def __str__(self) -> str:
        if isinstance(self.to, datetime):
            return f"{self.to.astimezone(UTC).isoformat(timespec='milliseconds')}"
        return self.to.value if isinstance(self.to, Edge) else "the offsets given"

    @classmethod
    def parse(cls, text: str, now: datetime) -> Target:
        """Parse the option's text. Raises ValueError that says what is expected. A time without a zone is UTC, as in Kafka's own tools."""
        if text in (Edge.EARLIEST.value, Edge.LATEST.value):
            return cls(text, Edge(text))
        duration = _DURATION.fullmatch(text)
        if duration is not None and any(duration.groups()):
            days, hours, minutes, seconds = (float(part or 0) for part in duration.groups())
            try:
                return cls(text, max(_EPOCH, now - timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)))
            except OverflowError:
                return cls(text, _EPOCH)
        if "=" in text:
            return cls(text, _offsets(text))
        if Path(text).is_file():
            return cls(text, _from_file(Path(text)))
        try:
            at = datetime.fromisoformat(text)
            return cls(text, max(_EPOCH, at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{text!r} is no place in a topic: {_EXPECTED}") from error

    @property
    def back(self) -> str:
        """The duration back from now; empty if the value is none."""
        return self.text if _is_duration(self.text) else ""

    def continued(self, unfinished: Reset | None) -> Target:
        """Return the target of a reset that was killed and is run again: the same duration back means the same time as before."""
        if unfinished is None or not self.back or unfinished.back != self.back:
            return self
        return Target(self.text, from_ms(unfinished.to_ms))

    def offsets(self, topics: TopicAdmin, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, NextOffset]:
        """Return the first offset of each input partition. Raises RefusedError for offsets that do not exist, or if one is missing;
        BrokerUnavailableError, StreamsError."""
        wanted = sorted(inputs)
        if self.to is Edge.EARLIEST or self.to == _EPOCH:
            return topics.start_offsets(wanted)
        if self.to is Edge.LATEST:
            return topics.end_offsets(wanted)
        if isinstance(self.to, datetime):
            return topics.offsets_for_times(wanted, to_ms(self.to)) if wanted else {}
        assert isinstance(self.to, Mapping)  # the only other type
        return _checked(self.to, topics, wanted)


def _is_duration(text: str) -> bool:
    duration = _DURATION.fullmatch(text)
    return duration is not None and any(duration.groups())


def _checked(given: Mapping[TopicPartition, int], topics: TopicAdmin, inputs: list[TopicPartition]) -> dict[TopicPartition, NextOffset]:
    starts, ends = topics.start_offsets(inputs), topics.end_offsets(inputs)
    problems = [f"{partition} is not an input of the application" for partition in sorted(given.keys() - set(inputs))]
    problems += [f"{partition} has no offset, and the application reads it" for partition in inputs if partition not in given]
    problems += [
        f"{partition} holds offsets {starts[partition]} to {ends[partition]}, not {offset}"
        for partition, offset in sorted(given.items())
        if partition in starts and not starts[partition] <= offset <= ends[partition]
    ]
    if problems:
        raise RefusedError("the offsets do not fit: " + "; ".join(problems))
    return {partition: NextOffset(offset) for partition, offset in given.items()}


def _offsets(text: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for entry in text.split(","):
        match = _OFFSET.fullmatch(entry.strip())
        if match is None:
            raise ValueError(f"{entry.strip()!r} is not TOPIC:PARTITION=OFFSET, for example flights:0=100")
        _add(offsets, TopicPartition(match["topic"], int(match["partition"])), int(match["offset"]))
    return offsets


def _from_file(path: Path) -> dict[TopicPartition, int]:
    """Read a file in the format of `kafka-consumer-groups --reset-offsets --from-file`."""
    offsets: dict[TopicPartition, int] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            fields = [field.strip() for field in row]
            if not any(fields):
                continue
            if len(fields) != 3 or not fields[1].isdecimal() or not fields[2].isdecimal():
                raise ValueError(f"{path}, line {number}: expected topic,partition,offset")
            _add(offsets, TopicPartition(fields[0], int(fields[1])), int(fields[2]))
    return offsets


def _add(offsets: dict[TopicPartition, int], partition: TopicPartition, offset: int) -> None:
    if offsets.setdefault(partition, offset) != offset:
        raise ValueError(f"{partition} has two offsets: {offsets[partition]} and {offset}")
