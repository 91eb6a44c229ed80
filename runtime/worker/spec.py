"""Values that a worker is built from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.model.states import State
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Identity of a worker within its instance. `number` counts from 1. `count`: the configured number of workers. `pid`: the process that
    takes signals for the instance, which need not be the worker's own."""

    number: int = 1
    count: int = 1
    pid: int = field(default_factory=os.getpid)

    def thread_name(self, instance: str) -> str:
        """Return the worker's name, as Kafka Streams names its stream threads."""
        return f"{instance}-StreamThread-{self.number}"

    def metrics(self, config: StreamsConfig, instance: str) -> Metrics:
        """Return a registry for the worker's metrics."""
        return Metrics(client_id=config.client_id or config.application_id, thread_id=self.thread_name(instance))

    def share(self, budget: int) -> int:
        """Return this worker's share of a budget of the instance."""
        return budget // self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Specification of one worker, the same for all its incarnations."""

    config: StreamsConfig
    topology: Topology
    directory: StateDirectory
    instance: str
    clock: Clock
    metrics: Metrics
    events: EventSink
    on_state: Callable[[State], None]
    """Receives each change of the worker's state, on the worker's thread."""
    on_incarnation: Callable[[int], None] = lambda incarnation: None
    """Receives the number of each incarnation before it is announced to the application."""
    close_client: Callable[[int | None], None] | None = None
    """Closes the client, within a number of ms (None: as `close()`), on an operator's command. None: only the worker stops."""
    identity: WorkerIdentity = field(default_factory=WorkerIdentity)
    restore_listener: StateRestoreListener | None = None
    standby_listener: StandbyUpdateListener | None = None
    log_path: str | None = None
    halted: bool = False
    """The worker starts paused (KIP-834)."""

    @property
    def application_id(self) -> str:
        return self.config.application_id
