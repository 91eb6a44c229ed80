"""The data type of the Kafka client that the engine uses directly.

Records come from the client in batches of thousands. Copying each into another type, or wrapping it, would cost more than the
rest of the work on a record, so the type itself is used outside this package: `map(Message.key, batch)` runs in C.
"""

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

__all__ = ["Message", "appended_ms"]


def appended_ms(message: Message) -> int | None:
    """Return the time at which the broker appended a record, by the broker's clock; None if the timestamp is the producer's."""
    kind, at_ms = message.timestamp()
    return at_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None
