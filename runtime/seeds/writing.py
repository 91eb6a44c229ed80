"""Transactional writer of changelogs and, last, of the input offsets. Its producer fences that of an earlier attempt."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.kafka.clients import offsets_consumer
from penstock.runtime.kafka.producer import NOT_PRODUCED, NotTakenError
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.errors import SeedRefusedError, StreamsError, TaskMigratedError, TransactionAbortedError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.model.record import Headers
from penstock.runtime.seeds.journal import Mark, journal_group
from penstock.runtime.stores.base import ChangelogRecord

logger = logging.getLogger(__name__)

_TRANSACTION_MS = 60_000


class SeedWriter:
    """Transactions of one installation. Failures raise StreamsError; nothing of the open transaction counts then."""

    def __init__(self, config: StreamsConfig) -> None:
        application_id = config.application_id
        # Each names a group to commit to.
        self._application = offsets_consumer(config.admin_properties(), application_id)
        self._journal = offsets_consumer(config.admin_properties(), journal_group(application_id))
        properties = {**config.producer_properties(), "transaction.timeout.ms": _TRANSACTION_MS, "linger.ms": 20}
        group = self._journal.consumer_group_metadata()
        self._transactions = TransactionalProducer(properties, journal_group(application_id), group, lambda: False)

    def start(self) -> None:
        """End the open transaction of an earlier attempt, and fence it if it still runs."""
        self._transactions.init()

    def send(self, partition: TopicPartition, records: Sequence[ChangelogRecord], headers: Headers | None) -> None:
        """Add changelog records to the transaction."""
        producer, (topic, number) = self._transactions.producer, partition
        produce = producer.produce
        for key, value, timestamp in records:
            at, carried = max(timestamp, 1), None if value is None else headers  # librdkafka reads timestamp 0 as "now"
            try:
                produce(topic, value, key, number, None, None, at, carried)  # type: ignore[arg-type]  # lists are invariant
            except NOT_PRODUCED:
                try:
                    producer.send(topic, key, value, at, carried, number)
                except NotTakenError as refused:
                    raise StreamsError(f"{partition} does not take the seed: {refused}") from refused
        producer.poll()

    def commit(self, marks: Mapping[TopicPartition, Mark], inputs: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit the records sent, together with the marks, and with `inputs` the start offsets of the application.

        Everything is delivered before the transaction's first closing call, which would otherwise exceed its time limit behind tens of
        thousands of records on a busy machine. (librdkafka 2.16.0 crashed twice in an installation on such a machine; the cause is
        unknown, and it did not happen again.)
        """
        while self._transactions.flush():
            pass
        if marks:
            self._transactions.send_offsets({partition: mark.encoded() for partition, mark in marks.items()})
        if inputs:
            self._transactions.send_offsets(inputs, self._application.consumer_group_metadata())
        self._transactions.commit()

    def close(self) -> None:
        """Close the clients and abort an open transaction; errors of the transaction are not raised."""
        self._transactions.close()
        self._application.close()
        self._journal.close()


def as_streams_error(error: TaskMigratedError | TransactionAbortedError) -> StreamsError:
    """Return a transaction's error as the installation reports it."""
    if isinstance(error, TaskMigratedError):
        return SeedRefusedError(f"another process installs a seed for this application, or the brokers took too long: {error}")
    return StreamsError(f"the brokers did not take the seed; start again, and it continues from there: {error}")
