"""How a client makes its workers: one in a thread, or processes that are told by name what to run."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping

from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.clock import Clock
from runtime.config import StreamsConfig
from runtime.errors import StreamsConfigError
from runtime.events import EventSink
from runtime.metrics import Metrics
from runtime.states import State
from runtime.stores.directory import StateDirectory
from runtime.topology.topology import Topology
from runtime.worker.crew import Crew
from runtime.worker.local import ThreadWorker
from runtime.worker.loop import Worker
from runtime.worker.messages import Begin, ListenerCall
from runtime.worker.remote import ProcessWorker
from runtime.worker.seat import Seat
from runtime.worker.stream_worker import StreamWorker


class Recruiter:
    """Makes the workers of one client."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        topology: Topology,
        factory: str | None,
        directory: StateDirectory,
        clock: Clock,
        metrics: Metrics,
        log_path: str | None,
    ) -> None:
        """`factory` is `module:function`, None for a topology that was made already. Raises StreamsConfigError where workers are to be
        processes that could not be told what to run."""
        self._config = config
        self._topology = topology
        self._factory = factory
        self._directory = directory
        self._clock = clock
        self._metrics = metrics
        self._log_path = log_path
        self._count = config.integer("num.stream.threads")
        self.restore_listener: StateRestoreListener | None = None
        self.standby_listener: StandbyUpdateListener | None = None
        if self._count > 1:
            self.check_processes()

    def check_processes(self) -> None:
        """Raises StreamsConfigError if no worker can be a process of its own (rules.md, 6)."""
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

    def make(self, crew: Crew, instance: str, number: int, halted: bool) -> StreamWorker:
        """The worker of a number, not started; `halted`: it begins paused (KIP-834)."""
        seat = Seat(number, self._count)
        if self._count == 1 and number == 1:
            return self._thread(crew, instance, seat, halted)
        return self._process(crew, instance, seat, halted)

    def _thread(self, crew: Crew, instance: str, seat: Seat, halted: bool) -> ThreadWorker:
        def make(on_state: Callable[[State], None], joins: Callable[[int], None]) -> Worker:
            return Worker(
                config=self._config,
                topology=self._topology,
                directory=self._directory,
                instance=instance,
                clock=self._clock,
                metrics=self._metrics,
                events=EventSink(self._config.application_id, instance, self._clock),
                on_state=on_state,
                restore_listener=self.restore_listener,
                standby_listener=self.standby_listener,
                log_path=self._log_path,
                seat=seat,
                halted=halted,
                ask_to_close=crew.close_wanted,
                joins=joins,
            )

        return ThreadWorker(make, seat, self._config.application_id, instance, crew, self._directory.await_former_workers)

    def _process(self, crew: Crew, instance: str, seat: Seat, halted: bool) -> ProcessWorker:
        assert self._factory is not None
        begin = Begin(
            settings=dict(self._config),
            factory=self._factory,
            instance=instance,
            seat=seat,
            halted=halted,
            log_path=self._log_path,
            log_levels=_log_levels(),
            stacks=-1,
            restore_listener=self.restore_listener is not None,
            standby_listener=self.standby_listener is not None,
        )
        return ProcessWorker(
            begin,
            boss=crew,
            later=crew.later,
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
    """The levels that were set, by logger; the root's under ""."""
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {"": logging.root.level} | {name: each.level for name, each in known.items() if each.level != logging.NOTSET}
