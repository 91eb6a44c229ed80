"""Offsets of a topology's topics: the ends, and those that the application has committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets at a time. `committed` has only partitions that the application has committed an offset of."""

    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, admin: TopicAdmin, application: str, partitions: Mapping[str, int], read: Collection[str]) -> TopicOffsets:
        """Request them. `partitions`: their number, by topic; `read`: topics that tasks read. Raises BrokerUnavailableError,
        StreamsError."""
        places = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        if not places:
            return cls({}, {})
        committed = admin.last_committed(application, [place for place in places if place.topic in read])
        return cls(admin.end_offsets(places), {place: each.offset for place, each in committed.items()})

    @property
    def behind(self) -> dict[TopicPartition, int]:
        """Lag of each partition that the application reads and has committed."""
        return {place: max(0, self.ends[place] - offset) for place, offset in self.committed.items() if place in self.ends}
