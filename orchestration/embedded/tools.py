"""Kafka's own command-line tools, from the same jars as the broker."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from penstock.orchestration.embedded import jars
from penstock.orchestration.embedded.java import java_home

TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""The name of the script in Kafka's distribution → the class that it starts."""


def command(tool: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a tool. Raises KeyError if there is no tool of this name."""
    settings = Path(__file__).with_name("log4j2-tools.properties")
    java = str(java_home() / "bin" / "java")
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Dlog4j2.configurationFile={settings}"]
    return [java, *options, "-cp", jars.class_path(jars.KAFKA), TOOLS[tool], *arguments]


def run_tool(tool: str, arguments: Sequence[str], timeout: float = 60.0) -> str:
    """Run a tool, for at most `timeout` seconds, and return its output. Raises CalledProcessError, with stderr, if it fails."""
    line = command(tool, arguments)
    return subprocess.run(line, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout).stdout
