"""Writes changelogs, and at last the input offsets, by one transactional producer that fences the one of an attempt before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException

from runtime.commit.metadata import OffsetAndMetadata
from runtime.commit.transactions import TransactionalProducer, classify, kafka_error, serve
from runtime.config import StreamsConfig
from runtime.errors import SeedRefusedError, StreamsError, TaskMigratedError, TransactionAbortedError
from runtime.ids import Partition
from runtime.kafka_logs import KAFKA_LOGGER
from runtime.record import Headers
from runtime.seeds.journal import Mark, journal_group
from runtime.stores.base import ChangelogRecord

logger = logging.getLogger(__name__)

_TRANSACTION_MS = 60_000
_POLL_SECONDS = 0.01


class SeedWriter:
    """The transactions of one installation. What goes wrong is a StreamsError: nothing of the open transaction counts then."""

    def __init__(self, config: StreamsConfig) -> None:
        application_id = config.application_id
        self._application = self._committer(config, application_id)
        self._journal = self._committer(config, journal_group(application_id))
        properties = {**config.producer_properties(), "transaction.timeout.ms": _TRANSACTION_MS, "linger.ms": 20}
        self._transactions = TransactionalProducer(properties, journal_group(application_id), self._journal, lambda: False)

    @staticmethod
    def _committer(config: StreamsConfig, group: str) -> Consumer:
        """Names a group to commit to, which it never joins."""
        return Consumer({**config.admin_properties(), "group.id": group, "enable.auto.commit": False}, logger=KAFKA_LOGGER)

    def start(self) -> None:
        """Ends what an attempt before has left open, and keeps it out if it still lives."""
        self._transactions.init()

    def send(self, partition: Partition, records: Sequence[ChangelogRecord], headers: Headers | None) -> None:
        """Adds changelog records to the transaction."""
        produce, poll = self._transactions.producer.produce, self._transactions.producer.poll
        topic, number = partition
        for key, value, timestamp in records:
            at = timestamp if timestamp > 0 else 1  # librdkafka reads timestamp 0 as "now"
            while True:
                try:
                    produce(topic, value, key, number, None, None, at, headers if value is not None else None)  # type: ignore[arg-type]  # lists are invariant
                    break
                except BufferError:
                    serve(poll, _POLL_SECONDS)
                except KafkaException as error:
                    raise classify(error) or StreamsError(f"{partition} does not take the seed: {kafka_error(error).str()}") from error
        serve(poll, 0)

    def commit(self, marks: Mapping[Partition, Mark], inputs: Mapping[Partition, OffsetAndMetadata] | None = None) -> None:
        """Commits what was sent together with how far that is; `inputs`: and with where the application is to begin.

        All of it is delivered before the first call of the transaction's end: behind tens of thousands of records on a busy machine such a
        call runs into its time limit and has to be made again. (librdkafka 2.16.0 has crashed in an installation on such a machine, twice;
        why is not known, and it did not come again.)
        """
        while self._transactions.flush():
            pass
        if marks:
            self._transactions.send_offsets({partition: mark.encoded() for partition, mark in marks.items()})
        if inputs:
            self._transactions.send_offsets(inputs, self._application.consumer_group_metadata())
        self._transactions.commit()

    def close(self) -> None:
        """Never raises for the transactions; what is not committed is aborted."""
        self._transactions.close()
        self._application.close()
        self._journal.close()


def told(error: TaskMigratedError | TransactionAbortedError) -> StreamsError:
    """What an error of a transaction means here."""
    if isinstance(error, TaskMigratedError):
        return SeedRefusedError(f"another process installs a seed for this application, or the brokers took too long: {error}")
    return StreamsError(f"the brokers did not take the seed; start again, and it goes on from there: {error}")
