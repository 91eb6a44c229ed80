"""Reading a log up to where it ends now.

librdkafka's `enable.partition.eof` says so only after a fetch that brought nothing. In a log that is always written to, no fetch does: at
200 records a second not once in a minute. A fleet's coordination topic is such a log, so a member that joins a large one would never have
read all of it. What ends the reading is therefore the partition's end as the first answer told it, or the event, whichever comes first.
(The event is needed too: the last offsets before an end may be markers of transactions, which are never delivered, or transactions that
are still open.)
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition


class LogEnd:
    """For a consumer with `enable.partition.eof`: tells when all has been read that its partitions held as they first answered.

    Make one as the reading begins, and ask it about each message.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ends: dict[tuple[str | None, int | None], int] = {}

    def reached(self, message: Message) -> bool:
        """Whether with this message everything has been read that was in its partition. Errors, but for the event, say nothing of it."""
        error = message.error()
        if error is not None:
            return error.code() == KafkaError._PARTITION_EOF
        place = (message.topic(), message.partition())
        end = self._ends.get(place)
        if end is None:
            end = self._told(TopicPartition(message.topic() or "", message.partition() or 0))
            if end is None:
                return False
            self._ends[place] = end
        return (message.offset() or 0) + 1 >= end

    def _told(self, partition: TopicPartition) -> int | None:
        """The high watermark of the latest answer: it came with this message, or after it. Nothing is asked of the broker."""
        try:
            known = self._consumer.get_watermark_offsets(partition, cached=True)
        except KafkaException:
            return None  # not assigned any more, or not answered: the event tells
        return known[1] if known is not None and known[1] >= 0 else None
