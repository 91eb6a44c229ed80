"""A worker as a process of its own: `python -m runtime.worker.process FD`, started by `remote.py` and by nobody else.

The worker is the same that a client with one worker runs in a thread. What is around it here belongs to being a process: what the client
says comes over a socket, and what the worker says goes back there, its log included. Signals for the instance are its main process's to
take, which then tells the workers; a service manager that sends them to all processes alike must not stop a worker under the client's
hands.

The socket is also how it is known that the main process is gone: then nobody can stop this one any more, and it ends by itself. It gets
`ORPHAN_SECONDS` for that; then it is ended, also in the middle of user code. A process that was frozen is woken up for it by the system,
because it is a process group of its own that nobody's parent is left of (POSIX: SIGHUP, SIGCONT to an orphaned group with stopped members).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading

from runtime import logs
from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.clock import SystemClock
from runtime.config import StreamsConfig
from runtime.events import EventSink
from runtime.metrics import Metrics
from runtime.stores.directory import StateDirectory
from runtime.topology.factory import build_topology
from runtime.worker.calls import Stop
from runtime.worker.channel import Channel, Failure
from runtime.worker.local import log_failure
from runtime.worker.loop import Worker
from runtime.worker.messages import Begin, CloseWanted, Ended, Joins, ListenerCall, Logged, Pulse, StateIs
from runtime.worker.service import Service

logger = logging.getLogger("runtime.worker.process")  # run as a program, it has another name

PULSE_SECONDS = 0.5
ORPHAN_SECONDS = 5.0
_ORPHAN_STOP_MS = 3_000


class _Forward(logging.Handler):
    """Hands log records to the main process, which has the log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        fields = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        task = fields.get("task")
        if task is not None:
            fields["task"] = str(task)
        self._channel.tell(Logged({name: value for name, value in fields.items() if isinstance(value, _PLAIN)}))


_PLAIN = (str, int, float, type(None))


class _Listener:
    """Stands for a listener of the client's: calls of it are made there."""

    def __init__(self, channel: Channel, *, standby: bool) -> None:
        self._channel = channel
        self._standby = standby

    def __getattr__(self, method: str) -> object:
        return lambda *arguments: self._channel.tell(ListenerCall(self._standby, method, arguments))


def main() -> int:
    """Runs the worker. The exit status is 0 for an end that was asked for, 1 for a failure; the main process knows more."""
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    service = Service()
    channel = Channel(socket.socket(fileno=descriptor), service.answer, service.hear)
    begin = channel.receive()
    assert isinstance(begin, Begin)
    _forward_logs(channel, begin)
    try:
        worker = _worker(channel, begin)
    except Exception as error:  # noqa: BLE001 (told to the client, whose business it is)
        log_failure(begin.seat.thread_name(begin.instance), error)
        channel.tell(Ended(Failure.of(error)))
        channel.close()
        return 1
    service.begin(worker)
    over = threading.Event()
    threading.Thread(target=_listen, args=(channel, worker, over), name="instance", daemon=True).start()
    threading.Thread(target=_beat, args=(channel, worker, begin.seat.pid), name="pulse", daemon=True).start()
    failure: Failure | None = None
    try:
        worker.run()
    except Exception as error:  # noqa: BLE001 (told to the client, whose business it is)
        log_failure(begin.seat.thread_name(begin.instance), error)
        failure = Failure.of(error)
    over.set()
    channel.tell(Ended(failure))
    channel.close()
    return 0 if failure is None else 1


def _forward_logs(channel: Channel, begin: Begin) -> None:
    logging.getLogger().handlers[:] = [_Forward(channel)]
    for name, level in begin.log_levels.items():
        logging.getLogger(name).setLevel(level)
    threading.current_thread().name = begin.seat.thread_name(begin.instance)
    os.set_inheritable(begin.stacks, False)
    faulthandler.register(signal.SIGUSR1, file=begin.stacks, all_threads=True)


def _worker(channel: Channel, begin: Begin) -> Worker:
    """Raises StateDirectoryError, TopologyError, StreamsConfigError."""
    config = StreamsConfig(begin.settings)
    directory = StateDirectory(config.state_dir, config.application_id)
    directory.join()
    clock = SystemClock()
    name = begin.seat.thread_name(begin.instance)
    return Worker(
        config=config,
        topology=build_topology(begin.factory).resolved(config),
        directory=directory,
        instance=begin.instance,
        clock=clock,
        metrics=Metrics(client_id=config.client_id or config.application_id, thread_id=name),
        events=EventSink(config.application_id, begin.instance, clock, begin.seat.number),
        on_state=lambda state: channel.tell(StateIs(state)),
        restore_listener=_restore_listener(channel) if begin.restore_listener else None,
        standby_listener=_standby_listener(channel) if begin.standby_listener else None,
        log_path=begin.log_path,
        seat=begin.seat,
        halted=begin.halted,
        ask_to_close=lambda timeout_ms: channel.tell(CloseWanted(timeout_ms)),
        joins=lambda incarnation: channel.tell(Joins(incarnation)),
    )


def _restore_listener(channel: Channel) -> StateRestoreListener:
    listener: StateRestoreListener = _Listener(channel, standby=False)  # type: ignore[assignment]  # every method there is
    return listener


def _standby_listener(channel: Channel) -> StandbyUpdateListener:
    listener: StandbyUpdateListener = _Listener(channel, standby=True)  # type: ignore[assignment]  # every method there is
    return listener


def _beat(channel: Channel, worker: Worker, parent: int) -> None:
    """Says that the process lives, as long as it does. The main process's end of the socket may be open in a process that it has forked, so
    it is looked for itself, too."""
    pause = threading.Event()
    while not pause.wait(PULSE_SECONDS):
        channel.tell(Pulse(worker.idle_ms))
        if os.getppid() != parent:
            channel.hang_up()
            return


def _listen(channel: Channel, worker: Worker, over: threading.Event) -> None:
    """Until this process hangs up, being `over`, or the main process is gone; then the worker ends, or is ended."""
    channel.serve()
    if over.is_set():
        return
    faulthandler.dump_traceback_later(ORPHAN_SECONDS, exit=True)
    logs.configure(None)
    logger.error("the main process of this worker is gone: closing")
    worker.request_stop(Stop(_ORPHAN_STOP_MS))


if __name__ == "__main__":
    sys.exit(main())
