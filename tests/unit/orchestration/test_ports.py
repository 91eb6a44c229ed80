"""Ports of the loopback interface."""

import os
import socket

from penstock.orchestration.embedded import ports


def test_a_port_is_free_until_a_process_listens() -> None:
    port = ports.free_port()
    assert ports.is_free(port)
    assert not ports.answers(port)
    with socket.socket() as server:
        server.bind((ports.LOOPBACK, port))
        server.listen()
        assert not ports.is_free(port)
        assert ports.answers(port)
        assert f"process {os.getpid()} (" in ports.holder(port) or ports.holder(port) == "another process"
    assert ports.holder(port) == "another process"


def test_the_command_that_starts_a_broker_is_named_for_the_embedded_one_alone() -> None:
    assert "penstock broker start" in ports.start_hint("127.0.0.1:9092")
    assert ports.start_hint("kafka:9092") == ports.start_hint("127.0.0.1:1") == ""
