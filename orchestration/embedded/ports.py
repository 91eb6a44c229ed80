"""Ports of the loopback interface: whether one is free, and which process uses it."""

from __future__ import annotations

import socket

import psutil

LOOPBACK = "127.0.0.1"
KAFKA_PORT = 9092
"""Port of the embedded broker, unless another one is chosen."""


def start_hint(servers: str) -> str:
    """Return the command that starts the broker at this address, if it is the embedded one's default; else nothing."""
    return "; `penstock broker start` starts the embedded one" if servers == f"{LOOPBACK}:{KAFKA_PORT}" else ""


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def holder(port: int) -> str:
    """Describe the process that listens on a port: `process 1234 (java kafka.Kafka …)`, or `another process` if the system does not say."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # macOS shows it to root only
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
    """Return True if a process listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
