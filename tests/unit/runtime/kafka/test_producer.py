"""Records that the client does not take at once, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.runtime.kafka.failures import Meaning, is_retriable, meaning
from penstock.runtime.kafka.producer import NotTakenError, RecordProducer, delivery_report
from penstock.runtime.model.errors import TaskMigratedError, TransactionAbortedError


class Client:
    """Raises the errors given, one at each attempt, then takes the record."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.taken: list[tuple[object, ...]] = []
        self.polls = 0

    def produce(self, *record: object) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(record)

    def poll(self, _seconds: float) -> int:
        self.polls += 1
        return 0


def send(client: Client, timestamp: int | None = 5, partition: int | None = None) -> None:
    RecordProducer(cast(Producer, client)).send("topic", b"k", b"v", timestamp, None, partition)


def failure(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "", flags.get("fatal", False), False, flags.get("abort", False)))


def test_send_waits_while_the_queue_is_full() -> None:
    client = Client(BufferError(), BufferError())
    send(client)
    assert client.polls == 2 and client.taken == [("topic", b"v", b"k", -1, None, None, 5, None)]


@pytest.mark.parametrize(("timestamp", "written"), [(None, 0), (0, 1), (7, 7)])
def test_timestamp_zero_is_written_as_one_and_none_as_the_current_time(timestamp: int | None, written: int) -> None:
    client = Client()
    send(client, timestamp, 3)
    assert client.taken == [("topic", b"v", b"k", 3, None, None, written, None)]


def test_a_refused_record_is_distinguished_from_a_failed_producer() -> None:
    too_large = failure(KafkaError.MSG_SIZE_TOO_LARGE)
    with pytest.raises(NotTakenError) as refused:
        send(Client(too_large))
    assert refused.value.error is too_large
    for code in (KafkaError._FENCED, KafkaError._FATAL):
        with pytest.raises(TaskMigratedError):
            send(Client(failure(code)))
    with pytest.raises(TaskMigratedError):
        send(Client(failure(KafkaError.INVALID_PRODUCER_EPOCH, fatal=True)))
    for error in (failure(KafkaError._STATE), failure(KafkaError.MSG_SIZE_TOO_LARGE, abort=True)):
        with pytest.raises(TransactionAbortedError):
            send(Client(error))


def test_a_delivery_report_calls_taken_or_refused() -> None:
    reported: list[object] = []
    refused: Callable[[Exception, Message], None] = lambda error, _message: reported.append(meaning(error))  # noqa: E731
    report, message = delivery_report(reported.append, refused), cast(Message, object())
    report(None, message)
    report(KafkaError(KafkaError.INVALID_TIMESTAMP), message)
    assert reported == [message, Meaning.RECORD | Meaning.TIMESTAMP]
    silent = delivery_report(None, None)
    silent(None, message)
    silent(KafkaError(KafkaError.INVALID_TIMESTAMP), message)


def test_other_exceptions_have_the_meaning_other() -> None:
    assert meaning(None) is meaning(ValueError()) is meaning(KafkaError(KafkaError.UNKNOWN)) is Meaning.OTHER
    assert not is_retriable(ValueError())
