"""Bytes that Kafka Streams 4.3.1 writes for joins (java/WriteJoins.java): ours are equal, and theirs can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import serdes
from penstock.runtime.serdes.internal import (
    Instruction,
    JoinKey,
    JoinKeySerde,
    JoinValuesSerde,
    Response,
    ResponseSerde,
    Subscription,
    SubscriptionSerde,
    foreign_prefix,
    primary_key_of,
)
from penstock.runtime.serdes.murmur import hash128

LINES = [line.split("\t") for line in (Path(__file__).parent / "written_by_java" / "joins.tsv").read_text(encoding="utf-8").splitlines()]
TOPIC = "app-topic"


def lines(kind: str) -> list[tuple[str, str]]:
    return [(text, data) for found, text, data in LINES if found == kind]


def both_ways(serde: serdes.Serde, value: object, data: str, read: object = None) -> None:
    assert serde.serializer(TOPIC)(value) == bytes.fromhex(data)
    assert serde.deserializer(TOPIC)(bytes.fromhex(data)) == (value if read is None else read)


@pytest.mark.parametrize(("text", "data"), lines("hash128"))
def test_rows_have_javas_hash(text: str, data: str) -> None:
    assert hash128(text.encode()).hex() == data


@pytest.mark.parametrize(("text", "data"), lines("subscription"))
def test_subscriptions_equal_javas(text: str, data: str) -> None:
    row, instruction, key, partition = text.split()
    subscription = Subscription(None if row == "-" else hash128(row.encode()), Instruction[instruction], key, int(partition))
    both_ways(SubscriptionSerde(serdes.STRING, "topic", "store-changelog"), subscription, data)


@pytest.mark.parametrize(("text", "data"), lines("response"))
def test_responses_equal_javas(text: str, data: str) -> None:
    row, value = text.split()
    response = Response(None if row == "-" else hash128(row.encode()), None if value == "-" else value, 3)
    both_ways(ResponseSerde(serdes.STRING), response, data, response._replace(partition=None))


@pytest.mark.parametrize(("text", "data"), lines("join key"))
def test_keys_of_records_without_a_partner_equal_javas(text: str, data: str) -> None:
    timestamp, side, key = text.split()
    both_ways(JoinKeySerde(serdes.STRING), JoinKey(int(timestamp), side == "left", key), data)


@pytest.mark.parametrize(("text", "data"), lines("join values"))
def test_values_of_records_without_a_partner_equal_javas(text: str, data: str) -> None:
    values = tuple((side == "left", value) for side, value in (each.split() for each in text.split(",")))
    both_ways(JoinValuesSerde(serdes.STRING, serdes.STRING), values, data)


def test_subscriptions_of_before_kafka_streams_3_4_have_no_partition() -> None:
    old = Subscription(None, Instruction.DELETE_KEY_AND_PROPAGATE, "k", None)
    both_ways(SubscriptionSerde(serdes.STRING, "topic", "store-changelog"), old, "80016b")


def test_messages_of_a_newer_version_are_refused() -> None:
    with pytest.raises(ValueError, match="has version 2; this code reads versions up to 1"):
        SubscriptionSerde(serdes.STRING, "topic", "store-changelog").deserializer(TOPIC)(bytes.fromhex("82016b00000000"))
    with pytest.raises(ValueError, match="has version 1; this code reads versions up to 0"):
        ResponseSerde(serdes.STRING).deserializer(TOPIC)(b"\x81")


def test_the_serde_of_a_primary_key_is_asked_for_one_topic_on_the_topic_and_in_the_changelog() -> None:
    asked: list[str] = []

    def write(topic: str, _headers: object, data: str) -> bytes:
        asked.append(topic)
        return data.encode()

    serde = SubscriptionSerde(serdes.Serde(write, lambda topic, headers, data: data.decode()), "join-topic", "store-changelog")
    for topic in ("app-join-topic", "app-store-changelog"):
        serde.serializer(topic)(Subscription(None, Instruction.DELETE_KEY_NO_PROPAGATE, "k", 0))
    assert asked == ["app-join-topic-pk", "app-join-topic-pk"]


def test_the_keys_of_subscriptions_begin_with_the_length_of_the_foreign_key() -> None:
    store_key = foreign_prefix(b"fk") + b"pk"
    assert store_key == b"\x00\x00\x00\x02fkpk"
    assert primary_key_of(store_key) == b"pk"
