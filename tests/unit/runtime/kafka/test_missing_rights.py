"""The text about a missing right names it, and the command that grants it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from penstock.runtime.kafka.failures import with_remedy

GRANTS = "`kafka-acls … --add --allow-principal User:PRINCIPAL --operation"


@pytest.mark.parametrize(
    ("code", "needs", "says"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Read on topic flights", f"{GRANTS} Read --topic flights` grants it."),
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            "Read on group board-members and topic in",
            f"{GRANTS} Read --group board-members` grants it.",
        ),
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "Write on transactional-id board-1",
            f"{GRANTS} Write --transactional-id board-1` grants it.",
        ),
        (
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            "DescribeConfigs on cluster kafka-cluster",
            f"{GRANTS} DescribeConfigs --cluster` grants it.",
        ),
    ],
)
def test_the_command_that_grants_a_right_is_named(code: int, needs: str, says: str) -> None:
    text = with_remedy(KafkaError(code), needs)
    assert f"It needs {needs}. {says}" in text and "`penstock acls`" in text


def test_a_right_on_resources_without_a_name_has_no_command_of_its_own() -> None:
    text = with_remedy(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "Write on each topic that it writes")
    assert "kafka-acls" not in text and "It needs Write on each topic that it writes. `penstock doctor`" in text
