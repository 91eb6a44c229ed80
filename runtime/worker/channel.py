"""A conversation of two processes over a local socket: questions with answers, and things told, both ways.

A message is a pickle behind its length. That is as safe as the socket: a pair that the parent made and its child inherited, with no address
that anybody else could connect to. Nobody waits to write: messages go out in order on a thread of the channel's own, so that a peer that is
frozen stops neither the worker nor its supervisor. Answers may come in another order than questions, and whoever asks gets a future.
"""

from __future__ import annotations

import logging
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count, pairwise
from queue import SimpleQueue

from runtime.errors import StreamsError

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct(">Q")
_MOST_CAUSES = 10
FLUSH_SECONDS = 5.0
"""How long `close` waits until all that was said is on its way."""


class ChannelClosedError(StreamsError):
    """The other process has ended, or hung up: no answer will come."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error and its causes, as another process can have them: pickles leave the causes out, and not every error survives one."""

    chain: tuple[BaseException, ...]

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        chain: list[BaseException] = []
        link: BaseException | None = error
        while link is not None and len(chain) < _MOST_CAUSES:
            chain.append(_portable(link))
            link = link.__cause__
        return cls(tuple(chain))

    @property
    def error(self) -> BaseException:
        """The error with its causes in place."""
        for error, cause in pairwise(self.chain):
            error.__cause__ = cause
        return self.chain[0]


def _portable(error: BaseException) -> BaseException:
    """The error itself, if it survives the way, else one of ours with its text."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (whatever an error of the user's does when it is copied)
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    return StreamsError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class _Question:
    number: int
    subject: object


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    value: object
    error: Failure | None


@dataclass(frozen=True, slots=True)
class _Word:
    subject: object


_Message = _Question | _Answer | _Word


class Channel:
    """One end. `answer` is asked what the other side asks: it gives the answer, or a future of it; what it raises is the answer, too.
    `hear` is told what the other side tells. Both are called on the thread that is in `serve`, one message after the other."""

    def __init__(self, end: socket.socket, answer: Callable[[object], object], hear: Callable[[object], None]) -> None:
        self._socket = end
        self._answer = answer
        self._hear = hear
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[object]] = {}
        self._closed = False
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writer.start()

    # -- to the other side -----------------------------------------------------------------------------------------------------

    def tell(self, subject: object) -> None:
        """Says something that has no answer. Raises StreamsError if it cannot be sent to another process; nobody hears it when the other
        side is gone."""
        self._send(_Word(subject))

    def ask(self, subject: object) -> Future[object]:
        """Asks. The future fails with what the other side raised, or with ChannelClosedError. Raises StreamsError if the question cannot be
        sent to another process."""
        future: Future[object] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(ChannelClosedError("the worker's process has ended"))
                return future
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            self._send(_Question(number, subject))
        except StreamsError:
            with self._lock:
                self._waiting.pop(number, None)
            raise
        return future

    def _send(self, message: _Message) -> None:
        try:
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise StreamsError(f"this cannot be handed to another process: {error}") from error
        self._outgoing.put(_LENGTH.pack(len(data)) + data)

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._socket.sendall(data)
            except OSError:
                return  # the other side is gone, which `serve` sees, too

    # -- from the other side ---------------------------------------------------------------------------------------------------

    def receive(self) -> object:
        """The next thing told, read on the caller's thread, before `serve`. Raises ChannelClosedError."""
        message = self._read()
        if not isinstance(message, _Word):
            raise ChannelClosedError("the other process hung up before it said anything")
        return message.subject

    def serve(self) -> None:
        """Takes what comes until the other side is gone. Questions that it has not answered fail then."""
        try:
            while (message := self._read()) is not None:
                self._take(message)
        finally:
            with self._lock:
                self._closed = True
                waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                future.set_exception(ChannelClosedError("the worker's process has ended"))

    def _take(self, message: _Message) -> None:
        match message:
            case _Word(subject):
                self._hear(subject)
            case _Question(number, subject):
                self._take_question(number, subject)
            case _Answer(number, value, error):
                with self._lock:
                    future = self._waiting.pop(number, None)
                if future is not None and error is not None:
                    future.set_exception(error.error)
                elif future is not None:
                    future.set_result(value)

    def _take_question(self, number: int, subject: object) -> None:
        try:
            answer = self._answer(subject)
        except Exception as error:  # noqa: BLE001 (it belongs to who asked)
            self._give(number, None, error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._give(number, None if done.exception() else done.result(), done.exception()))
        else:
            self._give(number, answer, None)

    def _give(self, number: int, value: object, error: BaseException | None) -> None:
        try:
            self._send(_Answer(number, value, None if error is None else Failure.of(error)))
        except StreamsError as unsendable:
            self._send(_Answer(number, None, Failure.of(unsendable)))

    def _read(self) -> _Message | None:
        """None at the end."""
        head = self._read_bytes(_LENGTH.size)
        data = None if head is None else self._read_bytes(_LENGTH.unpack(head)[0])
        if data is None:
            return None
        message: _Message = pickle.loads(data)
        return message

    def _read_bytes(self, size: int) -> bytes | None:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                received = self._socket.recv_into(view)
            except OSError:
                return None
            if not received:
                return None
            view = view[received:]
        return bytes(data)

    def close(self) -> None:
        """Hangs up when all that was said is on its way, or after `FLUSH_SECONDS`."""
        self._outgoing.put(None)
        self._writer.join(FLUSH_SECONDS)
        self.hang_up()
        self._socket.close()

    def hang_up(self) -> None:
        """Ends `serve`, as if the other side were gone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the other side had hung up")
