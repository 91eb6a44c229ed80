"""Sinks: serialise records and pass them to the collector (Kafka Streams' `SinkNode`, `RecordCollectorImpl`)."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection
from functools import lru_cache

from penstock.runtime.model.error_details import at_line
from penstock.runtime.model.errors import SchemaRegistryUnavailableError, SerializationError, StreamsError
from penstock.runtime.model.record import Headers, RecordContext
from penstock.runtime.model.user_errors import described, pass_ctrl_c
from penstock.runtime.operators.context import Forward, TaskContext
from penstock.runtime.serdes.murmur import partition_for
from penstock.runtime.serdes.serde import Serde, Serializer

Extractor = Callable[[object, object, RecordContext], str]
"""(key, value, context of the record) -> name of an existing topic (Kafka Streams' `TopicNameExtractor`)."""

StreamPartitioner = Callable[[str, object, object, int], "int | Collection[int] | None"]
"""(topic, key, value, number of partitions) -> a partition, several, none at all (empty), or None for the default (KIP-837)."""

Writers = tuple[Serializer, Serializer]

Refuse = Callable[[str, object, object, int, BaseException], None]
"""Called with topic, key, value, timestamp and error when a serde fails. The output is skipped if it returns."""


def sink(
    task: TaskContext,
    topic: str | Extractor,
    key_serde: Serde,
    value_serde: Serde,
    partitioner: StreamPartitioner | None,
    window_bytes: int = 0,
) -> Forward:
    """Return the function of a sink node. Null keys and values stay null; headers are those of the current record.

    `window_bytes`: number of bytes at the end of a key that are ignored when its partition is chosen, so that all windows of a key go to
    the key's partition (Kafka Streams' `WindowedStreamPartitioner`).
    """

    def headers() -> Headers | None:
        return task.headers

    def writers(name: str) -> Writers:
        return key_serde.serializer(name, headers), value_serde.serializer(name, headers)

    def refuse(name: str, key: object, value: object, timestamp: int, error: BaseException) -> None:
        unwritable = _unwritable(name, key_serde, value_serde, writers(name)[0], key, value, error)
        task.collector.unwritable(name, key, value, timestamp, task.headers, unwritable)

    if isinstance(topic, str) and partitioner is None:
        if window_bytes:
            return _windowed_sink(task, topic, *writers(topic), refuse, window_bytes)
        return _fixed_sink(task, topic, *writers(topic), refuse)
    extract = _always(topic) if isinstance(topic, str) else topic
    return _general_sink(task, extract, partitioner, writers, refuse, window_bytes, chosen=not isinstance(topic, str))


def _fixed_sink(task: TaskContext, topic: str, write_key: Serializer, write_value: Serializer, refuse: Refuse) -> Forward:
    send = task.collector.send

    def send_record(key: object, value: object, timestamp: int) -> None:
        try:
            raw_key = None if key is None else write_key(key)
            raw_value = None if value is None else write_value(value)
        except SchemaRegistryUnavailableError:
            raise  # the record is not the cause
        except BaseException as error:  # noqa: BLE001 (a serde may raise anything; the production handler decides)
            refuse(topic, key, value, timestamp, error)
            return
        send(topic, raw_key, raw_value, timestamp, task.headers, None)

    return send_record


def _windowed_sink(
    task: TaskContext, topic: str, write_key: Serializer, write_value: Serializer, refuse: Refuse, window_bytes: int
) -> Forward:
    send, partitions = task.collector.send, task.collector.partitions

    def send_record(key: object, value: object, timestamp: int) -> None:
        try:
            raw_key = None if key is None else write_key(key)
            raw_value = None if value is None else write_value(value)
        except SchemaRegistryUnavailableError:
            raise  # the record is not the cause
        except BaseException as error:  # noqa: BLE001 (as above)
            refuse(topic, key, value, timestamp, error)
            return
        partition = None if raw_key is None else _partition_of(raw_key[:-window_bytes], partitions(topic))
        send(topic, raw_key, raw_value, timestamp, task.headers, partition)

    return send_record


_partition_of = lru_cache(50_000)(partition_for)
"""The hash is computed in Python, so the last results are cached."""


def _unwritable(
    topic: str, key_serde: Serde, value_serde: Serde, write_key: Serializer, key: object, value: object, error: BaseException
) -> SerializationError:
    """Return an error that says whether the key or the value could not be written. The key is serialised again to find out."""
    pass_ctrl_c(error, f"sink to topic {topic}")
    what, serde, given, raw_key = "value", value_serde, value, None
    if key is not None:
        try:
            raw_key = write_key(key)
        except BaseException:  # noqa: BLE001 (user code may raise anything, and did)
            what, serde, given = "key", key_serde, key
    unwritable = SerializationError(
        f"serde {serde.name} cannot write the {what} {reprlib.repr(given)} (of type {type(given).__name__}) to topic {topic}"
        f"{at_line(error)}: {described(error)}. Give the sink a serde that can: Produced({what}=...)",
        is_key=what == "key",
        raw_key=raw_key,
        serde=serde.name,
    )
    unwritable.__cause__ = error
    return unwritable


_NO_INPUT = ("", -1, -1)


def _always(topic: str) -> Extractor:
    return lambda key, value, context: topic


def _general_sink(
    task: TaskContext,
    extract: Extractor,
    partitioner: StreamPartitioner | None,
    writers: Callable[[str], Writers],
    refuse: Refuse,
    window_bytes: int,
    *,
    chosen: bool,
) -> Forward:
    """Return the function of a sink with a topic extractor or a partitioner. `chosen`: the topic's name comes from the user's code, so its
    existence must be checked."""
    send, partitions, exists = task.collector.send, task.collector.partitions, task.collector.exists
    bound: dict[str, Writers] = {}

    def send_record(key: object, value: object, timestamp: int) -> None:
        at = (task.topic, task.partition, task.offset) if task.offset >= 0 else _NO_INPUT
        topic = extract(key, value, RecordContext(*at, timestamp, task.headers or []))
        if not isinstance(topic, str):
            raise StreamsError(f"the function that chooses the topic returned {topic!r}, which is not the name of a topic")
        known = bound.get(topic)
        write_key, write_value = known or writers(topic)
        try:
            raw_key = None if key is None else write_key(key)
            raw_value = None if value is None else write_value(value)
        except SchemaRegistryUnavailableError:
            raise
        except BaseException as error:  # noqa: BLE001 (as above)
            refuse(topic, key, value, timestamp, error)
            return
        if known is None:
            if chosen and not exists(topic, raw_key, raw_value, timestamp, task.headers):
                return
            bound[topic] = write_key, write_value
        wanted = None if partitioner is None else partitioner(topic, key, value, partitions(topic))
        if partitioner is None and window_bytes and raw_key is not None:
            wanted = _partition_of(raw_key[:-window_bytes], partitions(topic))
        if wanted is None or isinstance(wanted, int):
            send(topic, raw_key, raw_value, timestamp, task.headers, wanted)
            return
        if isinstance(wanted, str | bytes) or not isinstance(wanted, Collection):
            raise StreamsError(f"the partitioner chose {wanted!r} for topic {topic}: expected a partition (int), several of them, or None")
        if not wanted:
            task.dropped.add()
        for partition in wanted:
            send(topic, raw_key, raw_value, timestamp, task.headers, partition)

    return send_record
