"""Several Kafka brokers on this machine, as one cluster.

    <folder>/cluster.json            id and ports
            /1, /2, …                the data of each broker

Each broker is a process of its own with 512 MB, and has a rack of its own (`rack-1`, `rack-2`, …). Topics have three copies by default,
two of which must have a record before it counts as written, so that one broker may be away.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from penstock.orchestration.embedded import ports
from penstock.orchestration.embedded.kafka import (
    START_SECONDS,
    STOP_SECONDS,
    BrokerError,
    BrokerStatus,
    EmbeddedBroker,
    Seat,
    new_cluster_id,
)


class _Layout(msgspec.Struct, frozen=True):
    """Content of `cluster.json`: the id of the cluster, and the ports of its brokers and controllers."""

    cluster_id: str
    ports: list[int]
    controllers: list[int]


class EmbeddedCluster:
    """Cluster with its data in `data_dir`. The constructor has no side effects; call `start`. `ports`: those of its brokers, in order;
    None: as at its first start."""

    def __init__(self, data_dir: Path, ports: Sequence[int] | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self._ports = None if ports is None else list(ports)

    @property
    def exists(self) -> bool:
        """True if it was started before: its data is there."""
        return self._path.is_file()

    @property
    def brokers(self) -> list[EmbeddedBroker]:
        """The brokers, each of which can be stopped and started alone. Raises BrokerError before the first start."""
        layout = self._known()
        if layout is None:
            raise BrokerError(f"There is no cluster in {self.data_dir}: penstock broker start --brokers 3 makes one")
        controllers = dict(enumerate(layout.controllers, 1))
        return [
            self._broker(self.data_dir / str(node), port, Seat(node, controllers, layout.cluster_id))
            for node, port in enumerate(layout.ports, 1)
        ]

    def _broker(self, data_dir: Path, port: int, seat: Seat) -> EmbeddedBroker:
        """Return the broker of a seat; for subclasses."""
        return EmbeddedBroker(data_dir, port, seat)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers. Raises BrokerError before the first start."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def start(self, timeout: float = START_SECONDS) -> list[BrokerStatus]:
        """Start the brokers that do not run, and return when all answer. Raises JarsError, and BrokerError, also if the cluster has other
        ports."""
        known = self._known()
        if known is None:
            self._make()
        elif self._ports not in (None, known.ports):
            listed = ", ".join(map(str, known.ports))
            raise BrokerError(
                f"The cluster in {self.data_dir} has the ports {listed}, and data on each of its brokers: start it with these "
                f"(penstock broker start --brokers {len(known.ports)} --port {known.ports[0]}), or delete the folder to begin anew"
            )
        brokers = self.brokers
        with ThreadPoolExecutor(len(brokers)) as threads:
            list(threads.map(lambda broker: broker.launch(timeout), brokers))
            return list(threads.map(lambda broker: broker.wait_until_ready(timeout), brokers))

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Ask all brokers to close, and wait until they have; return True if one was running. Their data is kept."""
        if not self.exists:
            return False
        brokers = self.brokers
        with ThreadPoolExecutor(len(brokers)) as threads:
            return any(list(threads.map(lambda broker: broker.stop(timeout), brokers)))

    def status(self) -> list[BrokerStatus]:
        """Return the status of each broker that runs."""
        found = [broker.status() for broker in self.brokers] if self.exists else []
        return [status for status in found if status is not None]

    @property
    def _path(self) -> Path:
        return self.data_dir / "cluster.json"

    def _known(self) -> _Layout | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Layout)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise BrokerError(f"{self._path} is damaged ({error}): delete {self.data_dir} to begin with an empty cluster") from error

    def _make(self) -> None:
        if not self._ports:
            raise BrokerError(f"There is no cluster in {self.data_dir}: say how many brokers it is to have")
        controllers: list[int] = []
        while len(controllers) < len(self._ports):  # another cluster of this machine may get the same one: then a start says so
            if (port := ports.free_port()) not in (*controllers, *self._ports):
                controllers.append(port)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(_Layout(new_cluster_id(), self._ports, controllers)))
        partial.replace(self._path)
