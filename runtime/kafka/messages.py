"""Data types of the Kafka client that the engine uses directly.

`Message`: records come from the client in batches of thousands. Copying each into another type, or wrapping it, would cost more than the
rest of the work on a record, so the type itself is used outside this room: `map(Message.key, batch)` runs in C.
`TopicPartition`: `StreamsMetadata` and `TaskMetadata` of the public API contain partitions as users pass them to their own Kafka clients.
Inside the engine a partition is a `model.ids.Partition`.
"""

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, TopicPartition

__all__ = ["Message", "TopicPartition", "appended_ms"]


def appended_ms(message: Message) -> int | None:
    """Return the time at which the broker appended a record, by the broker's clock; None if the timestamp is the producer's."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None
