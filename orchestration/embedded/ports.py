"""Ports of the loopback interface: is one free, and if not, who has it."""

from __future__ import annotations

import socket

import psutil

LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """True if a server could listen on this port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def holder(port: int) -> str:
    """Who listens on a port, for people: `process 1234 (java kafka.Kafka …)`, or `another process` where the system does not tell."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # macOS tells only root
        return "another process"
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.pid and connection.laddr and connection.laddr.port == port:
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = ""
            return f"process {connection.pid} ({command[:80] or 'ended meanwhile'})"
    return "another process"


def answers(port: int) -> bool:
    """True if somebody listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
