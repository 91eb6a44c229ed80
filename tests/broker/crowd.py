"""Many members in few processes: `python -m tests.broker.crowd FOLDER NAME…` runs a client with one worker for each name.

They are full members: a group membership, a consumer of the coordination topic, a transactional producer, tasks. They process almost
nothing, so that dozens fit on one machine. Application, broker and topics come from the environment. It runs until it is killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from penstock.runtime.client.kafka_streams import KafkaStreams
from tests.support.fleets import copy


def main(folder: Path, names: list[str]) -> None:
    """Start the clients, and wait."""
    logging.basicConfig(filename=folder / f"{names[0]}.log", level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    topology = copy()
    for name in names:
        settings: dict[str, object] = {
            "application.id": os.environ["TEST_APPLICATION"],
            "bootstrap.servers": os.environ["TEST_SERVERS"],
            "client.id": name,
            "state.dir": str(folder / name),
            # With so many on two cores, processes pause; hundreds of transactions a second would test the broker instead.
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_500,
            "commit.interval.ms": 2_000,
            "failure.detection.ms": 0,  # each member would start a process, and all in this one end together
        }
        KafkaStreams(topology, settings).start()
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
