"""Arguments of a client whose workers are processes (rules.md, 6)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.runtime.client.kafka_streams import KafkaStreams
from penstock.runtime.model.errors import StreamsConfigError, TopologyError
from penstock.runtime.model.handlers import LogAndContinueExceptionHandler
from penstock.runtime.topology.topology import Topology
from tests.support.engine import count_topology

FACTORY = "tests.unit.runtime.client.test_worker_settings:build"


def build() -> Topology:
    return count_topology("in", "out")


def settings(folder: Path, **more: object) -> dict[str, object]:
    return {"application.id": "app", "bootstrap.servers": "127.0.0.1:1", "state.dir": str(folder), "num.stream.threads": 2, **more}


class Handler(LogAndContinueExceptionHandler):
    """Holds what no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_rule_6_a_ready_made_topology_is_refused_and_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StreamsConfigError, match=r"num\.stream\.threads above 1: .* KafkaStreams\('my_module:build', config\)"):
        KafkaStreams(build(), settings(tmp_path))
    KafkaStreams(build(), settings(tmp_path, **{"num.stream.threads": 1}))


def test_a_factory_is_called_by_its_name(tmp_path: Path) -> None:
    KafkaStreams(FACTORY, settings(tmp_path))
    with pytest.raises(TopologyError, match="expected module:function"):
        KafkaStreams("tests.unit", settings(tmp_path))
    with pytest.raises(TopologyError, match="cannot be imported"):
        KafkaStreams("tests.unit.runtime.client.test_worker_settings:nothing", settings(tmp_path))


def test_a_handler_that_no_other_process_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(StreamsConfigError, match=r"deserialization\.exception\.handler = .* cannot be handed to another process"):
        KafkaStreams(FACTORY, settings(tmp_path, **{"deserialization.exception.handler": Handler()}))
    KafkaStreams(FACTORY, settings(tmp_path, **{"deserialization.exception.handler": LogAndContinueExceptionHandler}))


def test_what_is_of_the_program_itself_cannot_be_imported_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "__module__", "__main__")
    with pytest.raises(StreamsConfigError, match="is of the program itself, which workers cannot import: put it in a module"):
        KafkaStreams(FACTORY, settings(tmp_path, **{"deserialization.exception.handler": Handler}))
