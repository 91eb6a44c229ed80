"""Findings of `penstock doctor` on topics, brokers and this machine, as such; with a broker: tests/dagster/test_secured.py."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Node, TopicPartitionInfo, Uuid
from confluent_kafka.admin._topic import TopicDescription

from penstock.orchestration.doctor import clocks, machine
from penstock.orchestration.doctor.examination import _away
from penstock.orchestration.doctor.finding import Outcome
from penstock.orchestration.doctor.topics import of_topic
from penstock.orchestration.rights import Operation, Resource, Right
from penstock.runtime.kafka.api_versions import ApiVersions
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import said
from tests.support import without_root

NODES = [Node(number, "127.0.0.1", 9091 + number) for number in (1, 2, 3)]


def topic(copies: int, in_sync: int, leader: int = 1) -> TopicDescription:
    part = TopicPartitionInfo(0, Node(leader, "", 0) if leader < 0 else NODES[0], NODES[:copies], NODES[:in_sync])
    return TopicDescription("flights", Uuid(1, 1), False, [part])


SECURED = Connection("k:9093", {"security.protocol": "SASL_SSL"})
PRINTED = "kafka-configs --bootstrap-server k:9093 --command-config admin.properties"


@pytest.mark.parametrize(
    ("found", "must_have", "brokers", "outcome", "said"),
    [
        (topic(3, 3), 2, 3, Outcome.OK, "partitions 1, copies 3, min.insync.replicas 2"),
        (topic(1, 1), 1, 1, Outcome.OK, "copies 1"),
        (topic(3, 2), 2, 3, Outcome.WARNING, "partition 0 has copies that are not in sync"),
        (topic(3, 1), 2, 3, Outcome.WRONG, "nothing can be written there"),
        (topic(1, 1), 2, 3, Outcome.WARNING, "the cluster has 3 brokers"),
        (topic(2, 2), 3, 3, Outcome.WARNING, "nothing can be written while one broker is away"),
        (topic(2, 1), 3, 3, Outcome.WRONG, "nothing can be written there"),
        (topic(3, 3), 3, 3, Outcome.WARNING, "nothing can be written while one broker is away"),
        (topic(1, 1), 1, 3, Outcome.WARNING, "the cluster has 3 brokers"),
        (topic(3, 3, leader=-1), 2, 3, Outcome.WRONG, "partition 0 has no leader"),
    ],
)
def test_copies_of_a_topic(found: TopicDescription, must_have: int, brokers: int, outcome: Outcome, said: str) -> None:
    finding = of_topic("input topic", found, {"min.insync.replicas": str(must_have)}, brokers, SECURED)
    assert (finding.outcome, bool(finding.remedy)) == (outcome, outcome is not Outcome.OK)
    assert said in finding.text
    assert "kafka-configs" not in finding.remedy or f"{PRINTED} --alter" in finding.remedy


def test_a_broker_that_is_not_in_the_cluster_now_is_named_with_its_topics() -> None:
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    (away,) = _away({"flights": topic(3, 2), "absent": error}, {1, 3})
    assert (away.outcome, away.text) == (Outcome.WARNING, "broker 2 is away: it has copies of flights")
    assert not list(_away({"flights": topic(3, 2)}, {1, 2, 3}))


def test_an_error_without_a_text_of_the_brokers_has_that_of_its_code() -> None:
    assert said(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, "ConsumerGroupDescribe: ")) == (
        "ConsumerGroupDescribe: Broker: Coordinator not available"
    )
    assert said(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, "a text")) == "a text"


def test_a_folder_that_may_not_be_written_is_wrong_and_none_is_made(tmp_path: Path) -> None:
    assert machine.folder(tmp_path / "home" / "state").outcome is not Outcome.WRONG
    (tmp_path / "a file").touch()
    assert machine.folder(tmp_path / "a file" / "state").outcome is Outcome.WRONG
    (tmp_path / "closed").mkdir(mode=0o500)
    with without_root():
        assert "may not be written" in machine.folder(tmp_path / "closed" / "state").text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "closed"]


def test_a_full_disk_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NEEDED_BYTES", 2**62)
    assert machine.folder(tmp_path).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("skews", "ahead", "outcome", "said"),
    [
        ([40, 12], 0, Outcome.OK, "0.0 s ahead of"),
        ([-15_000, -14_000], 0, Outcome.WARNING, "14.0 s behind"),
        ([4_000_000], 0, Outcome.WRONG, "4000.0 s ahead of"),
        ([], 20_000, Outcome.WARNING, "20.0 s ahead of"),
        ([], 0, Outcome.UNKNOWN, "shows in heartbeats"),
    ],
)
def test_clocks(skews: list[int], ahead: int, outcome: Outcome, said: str) -> None:
    finding = clocks.of_clock(clocks.Read(skews, ahead))
    assert finding.outcome is outcome
    assert said in finding.text


def test_a_delay_that_brokers_impose_is_a_warning() -> None:
    delayed = clocks.of_quota(clocks.Read([], throttled_s=0.7), SECURED)
    assert (delayed.outcome, f"{PRINTED} --describe" in delayed.remedy) == (Outcome.WARNING, True)
    assert clocks.of_quota(clocks.Read([]), SECURED).outcome is Outcome.OK


@pytest.mark.parametrize("name", ["shop", 'a "b` $c \\', "CN=shop, O=x"])
def test_a_printed_grant_names_the_principal_that_the_login_has(name: str, tmp_path: Path) -> None:
    """The shell that runs the command fills in what the configuration's `${}` stand for, and nothing else."""
    file = tmp_path / "user"
    file.write_text(f"{name}\n")
    right = Right(Resource.GROUP, "g", (Operation.READ,), "offsets")
    for principal in (f"User:{name}", "User:${PENSTOCK_TEST_NAME}", f"User:${{file:{file}}}", "User:${file:${PENSTOCK_TEST_FOLDER}/user}"):
        script = 'kafka-acls() { printf "%s" "$7"; }; ' + right.command(principal, "k:9093")
        environment = {"PENSTOCK_TEST_NAME": name, "PENSTOCK_TEST_FOLDER": str(tmp_path), "PATH": os.environ["PATH"]}
        assert subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, text=True).stdout == f"User:{name}"


@pytest.mark.parametrize(("apis", "release"), [({1: 16}, "3.7"), ({1: 17, 24: 5, 2: 9}, "3.9"), ({1: 15, 2: 11}, "")])
def test_the_release_follows_from_the_apis(apis: dict[int, int], release: str) -> None:
    heard = ApiVersions()
    logger = heard.logger()
    for key, last in apis.items():
        line = f"APIVERSION [rdkafka#producer-1] [thrd:sasl_ssl://h:1/1]: sasl_ssl://h:1/1:   ApiKey Fetch ({key}) Versions 0..{last}"
        logger.log(logging.DEBUG, "%s", line)
    assert heard.release("h:1") == release
    assert heard.release("h:2") == ""
