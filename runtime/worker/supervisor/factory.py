"""Factory of a client's workers: one in a thread, or processes that import the topology's function by name."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping

from penstock.runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model.clock import Clock
from penstock.runtime.model.errors import StreamsConfigError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.states import State
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.loop import Worker
from penstock.runtime.worker.spec import WorkerIdentity, WorkerSpec
from penstock.runtime.worker.supervisor.messages import Begin, ListenerCall
from penstock.runtime.worker.supervisor.process_worker import ProcessWorker
from penstock.runtime.worker.supervisor.stream_worker import StreamWorker
from penstock.runtime.worker.supervisor.supervisor import Supervisor
from penstock.runtime.worker.supervisor.thread_worker import ThreadWorker


class WorkerFactory:
    """Makes the workers of one client."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        topology: Topology,
        factory: str | None,
        directory: StateDirectory,
        clock: Clock,
        log_path: str | None,
    ) -> None:
        """`factory` is `module:function`, None for a topology object. Raises StreamsConfigError where workers are to be processes but
        cannot import their topology."""
        self._config = config
        self._topology = topology
        self._factory = factory
        self._directory = directory
        self._clock = clock
        self._log_path = log_path
        self._count = config.integer("num.stream.threads")
        self.restore_listener: StateRestoreListener | None = None
        self.standby_listener: StandbyUpdateListener | None = None
        if self._count > 1:
            self.check_processes()

    def check_processes(self) -> None:
        """Raise StreamsConfigError if workers cannot be processes of their own (rules.md, 6)."""
        if self._factory is None:
            raise StreamsConfigError(
                "num.stream.threads above 1: each worker is a process of its own, which builds the topology itself. Give KafkaStreams the "
                "name of a function that makes it in the place of the topology, as in KafkaStreams('my_module:build', config)"
            )
        if self._factory.startswith("__main__:"):
            raise StreamsConfigError(f"factory {self._factory!r}: the program itself cannot be imported; put the function in a module")
        for key, value in self._config.items():
            if getattr(value, "__module__", None) == "__main__" or getattr(type(value), "__module__", None) == "__main__":
                raise StreamsConfigError(f"{key} = {value!r} is of the program itself, which workers cannot import: put it in a module")
            try:
                pickle.dumps(value)
            except Exception as error:
                raise StreamsConfigError(f"{key} = {value!r} cannot be handed to another process: {error}") from error

    def make(self, supervisor: Supervisor, instance: str, number: int, halted: bool) -> StreamWorker:
        """Return a new worker, not started; `halted`: it starts paused (KIP-834)."""
        identity = WorkerIdentity(number, self._count)
        if self._count == 1 and number == 1:
            return self._thread(supervisor, instance, identity, halted)
        return self._process(supervisor, instance, identity, halted)

    def _thread(self, supervisor: Supervisor, instance: str, identity: WorkerIdentity, halted: bool) -> ThreadWorker:
        def make(on_state: Callable[[State], None], on_incarnation: Callable[[int], None]) -> Worker:
            return Worker(
                WorkerSpec(
                    config=self._config,
                    topology=self._topology,
                    directory=self._directory,
                    instance=instance,
                    clock=self._clock,
                    metrics=identity.metrics(self._config, instance),
                    events=EventSink(self._config.application_id, instance, self._clock),
                    on_state=on_state,
                    on_incarnation=on_incarnation,
                    close_client=supervisor.close_requested,
                    identity=identity,
                    restore_listener=self.restore_listener,
                    standby_listener=self.standby_listener,
                    log_path=self._log_path,
                    halted=halted,
                )
            )

        return ThreadWorker(make, identity, self._config.application_id, instance, supervisor, self._directory.await_previous_workers)

    def _process(self, supervisor: Supervisor, instance: str, identity: WorkerIdentity, halted: bool) -> ProcessWorker:
        assert self._factory is not None
        begin = Begin(
            settings=dict(self._config),
            factory=self._factory,
            instance=instance,
            identity=identity,
            halted=halted,
            log_path=self._log_path,
            log_levels=_log_levels(),
            stacks=-1,
            restore_listener=self.restore_listener is not None,
            standby_listener=self.standby_listener is not None,
        )
        return ProcessWorker(
            begin,
            listener=supervisor,
            later=supervisor.later,
            listen=self._listen,
            clock=self._clock,
            silent_ms=self._config.integer("session.timeout.ms"),
            idle_ms=self._config.integer("max.poll.interval.ms"),
        )

    def _listen(self, call: ListenerCall) -> None:
        listener = self.standby_listener if call.standby else self.restore_listener
        if listener is not None:
            getattr(listener, call.method)(*call.arguments)


def _log_levels() -> Mapping[str, int]:
    """Return the configured levels by logger, the root's under ""."""
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {"": logging.root.level} | {name: each.level for name, each in known.items() if each.level != logging.NOTSET}
