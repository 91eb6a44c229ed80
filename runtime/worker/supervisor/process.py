"""A worker in a process of its own: `python -m penstock.runtime.worker.supervisor.process FD`, started only by `process_worker.py`.

The worker is the same that a client with one worker runs in a thread. This module adds what a process needs: requests of the client arrive
over a socket, and responses, notifications and the log go back there. Signals for the instance are handled by its main process, which then
stops the workers; a service manager that signals all processes alike must not stop a worker on its own.

The end of the socket also shows that the main process is gone. Then no process can stop this one any more, and it stops by itself within
`ORPHAN_SECONDS`, or is killed, even in the middle of user code. The system wakes up a frozen process for that, because it is in an orphaned
process group of its own (POSIX: SIGHUP and SIGCONT to an orphaned group with stopped members).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading

from penstock.runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.model import durations, logs
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.events import EventSink
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.loop import Worker
from penstock.runtime.worker.rpc import Stop
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.supervisor.channel import Channel, Failure
from penstock.runtime.worker.supervisor.messages import (
    Begin,
    CloseRequested,
    Ended,
    Heartbeat,
    IncarnationStarted,
    ListenerCall,
    Logged,
    StateChanged,
)
from penstock.runtime.worker.supervisor.service import Service
from penstock.runtime.worker.supervisor.thread_worker import log_failure

logger = logging.getLogger("penstock.runtime.worker.supervisor.process")  # run as a program, the module has another name

PULSE_SECONDS = 0.5
ORPHAN_SECONDS = 5.0
_ORPHAN_STOP_MS = 3_000


class _Forward(logging.Handler):
    """Forwards log records to the main process, which writes the log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._forward(record)
        except Exception:  # noqa: BLE001 (as in logging's own handlers: a line that cannot be formatted is dropped)
            self.handleError(record)

    def _forward(self, record: logging.LogRecord) -> None:
        fields = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        task = fields.get("task")
        if task is not None:
            fields["task"] = str(task)
        self._channel.notify(Logged({name: value for name, value in fields.items() if isinstance(value, _PLAIN)}))


_PLAIN = (str, int, float, type(None))


class _Listener:
    """Proxy for a listener of the client's: calls are made in the client's process."""

    def __init__(self, channel: Channel, *, standby: bool) -> None:
        self._channel = channel
        self._standby = standby

    def __getattr__(self, method: str) -> object:
        return lambda *arguments: self._channel.notify(ListenerCall(self._standby, method, arguments))


def main() -> int:
    """Run the worker. The exit status is 0 for a requested stop, 1 for a failure; the main process has the details."""
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    service = Service()
    channel = Channel(socket.socket(fileno=descriptor), service.handle_request, service.handle_notification)
    begin = channel.receive()
    assert isinstance(begin, Begin)
    _forward_logs(channel, begin)
    try:
        worker = _worker(channel, begin)
    except BaseException as error:  # noqa: BLE001 (also SystemExit: it is reported to the client)
        log_failure(begin.identity.thread_name(begin.instance), error)
        channel.notify(Ended(Failure.of(error)))
        channel.close()
        return 1
    service.begin(worker)
    over = threading.Event()
    threading.Thread(target=_listen, args=(channel, worker, over), name="instance", daemon=True).start()
    threading.Thread(target=_beat, args=(channel, worker, begin.identity.pid), name="pulse", daemon=True).start()
    failure: Failure | None = None
    try:
        worker.run()
    except BaseException as error:  # noqa: BLE001 (also SystemExit: it is reported to the client)
        log_failure(begin.identity.thread_name(begin.instance), error)
        failure = Failure.of(error)
    over.set()
    channel.notify(Ended(failure))
    channel.close()
    return 0 if failure is None else 1


def _forward_logs(channel: Channel, begin: Begin) -> None:
    logging.getLogger().handlers[:] = [_Forward(channel)]
    for name, level in begin.log_levels.items():
        logging.getLogger(name).setLevel(level)
    threading.current_thread().name = begin.identity.thread_name(begin.instance)
    os.set_inheritable(begin.stacks, False)
    faulthandler.register(signal.SIGUSR1, file=begin.stacks, all_threads=True)


def _built_again(factory: str) -> Topology:
    """Build the topology without its warnings: the client built it first, and logged them."""
    warns = logging.getLogger(durations.__name__)
    level = warns.level
    warns.setLevel(logging.ERROR)
    try:
        return build_topology(factory)
    finally:
        warns.setLevel(level)


def _worker(channel: Channel, begin: Begin) -> Worker:
    """Build the worker. Raises StateDirectoryError, TopologyError, StreamsConfigError."""
    config = StreamsConfig(begin.settings)
    directory = StateDirectory(config.state_dir, config.application_id)
    directory.join()
    clock = SystemClock()
    return Worker(
        WorkerSpec(
            config=config,
            topology=_built_again(begin.factory).resolved(config),
            directory=directory,
            instance=begin.instance,
            clock=clock,
            metrics=begin.identity.metrics(config, begin.instance),
            events=EventSink(config.application_id, begin.instance, clock, begin.identity.number),
            on_state=lambda state: channel.notify(StateChanged(state)),
            on_incarnation=lambda incarnation: channel.notify(IncarnationStarted(incarnation)),
            close_client=lambda timeout_ms: channel.notify(CloseRequested(timeout_ms)),
            identity=begin.identity,
            restore_listener=_restore_listener(channel) if begin.restore_listener else None,
            standby_listener=_standby_listener(channel) if begin.standby_listener else None,
            log_path=begin.log_path,
            halted=begin.halted,
        )
    )


def _restore_listener(channel: Channel) -> StateRestoreListener:
    listener: StateRestoreListener = _Listener(channel, standby=False)  # type: ignore[assignment]  # every method there is
    return listener


def _standby_listener(channel: Channel) -> StandbyUpdateListener:
    listener: StandbyUpdateListener = _Listener(channel, standby=True)  # type: ignore[assignment]  # every method there is
    return listener


def _beat(channel: Channel, worker: Worker, parent: int) -> None:
    """Send heartbeats as long as the process lives. Also check for the main process itself, because its end of the socket may be open in a
    process that it has forked."""
    pause = threading.Event()
    while os.getppid() == parent:
        channel.notify(Heartbeat(worker.idle_ms))
        pause.wait(PULSE_SECONDS)
    channel.shut_down()


def _listen(channel: Channel, worker: Worker, over: threading.Event) -> None:
    """Serve until this process closes the channel (`over`) or the main process is gone; then stop the worker, or kill the process."""
    channel.serve()
    if over.is_set():
        return
    faulthandler.dump_traceback_later(ORPHAN_SECONDS, exit=True)
    logs.configure(None)
    logger.error("the main process of this worker is gone: closing")
    worker.request_stop(Stop(_ORPHAN_STOP_MS))


if __name__ == "__main__":
    sys.exit(main())
