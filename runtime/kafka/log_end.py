"""Reading a log up to its current end.

librdkafka's `enable.partition.eof` emits its event only after an empty fetch. While a log is written to continuously, no fetch is empty: at
200 records per second not one in a minute. The coordination topic of a large fleet is such a log, so a new member would never finish
reading it. So reading stops at the partition's end as of the first response, or at the event, whichever comes first. (The event is needed
too: the last offsets before the end may be transaction markers, which are never delivered, or belong to open transactions.)
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from penstock.runtime.kafka.failures import Meaning, meaning


class LogEnd:
    """Detects when a consumer with `enable.partition.eof` has read all records up to its partitions' ends as of their first responses.

    Create it before reading starts, and call `reached` with each message.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ends: dict[tuple[str | None, int | None], int] = {}

    def reached(self, message: Message) -> bool:
        """Return True if this message was the last one of its partition. Errors other than the end-of-partition event are ignored."""
        error = message.error()
        if error is not None:
            return Meaning.END in meaning(error)
        place = (message.topic(), message.partition())
        end = self._ends.get(place)
        if end is None:
            end = self._high_watermark(TopicPartition(message.topic() or "", message.partition() or 0))
            if end is None:
                return False
            self._ends[place] = end
        return (message.offset() or 0) + 1 >= end

    def _high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the latest response, which came with this message or after it. Makes no request."""
        try:
            known = self._consumer.get_watermark_offsets(partition, cached=True)
        except KafkaException:
            return None  # not assigned any more, or not answered: the end-of-partition event has the end
        return known[1] if known is not None and known[1] >= 0 else None
