"""Messages between two processes over a local socket: requests with responses, and notifications, both ways.

A message is a pickle after its length. That is as safe as the socket: a pair that the parent made and its child inherited, with no address
to which any other process could connect. No caller waits for a write: messages go out in order on a thread of the channel's own, so that a
frozen peer blocks neither the worker nor its supervisor. Responses may arrive in another order than their requests, and each request
returns a future.
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

from penstock.runtime.model.errors import StreamsError

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct(">Q")
_MOST_CAUSES = 10
FLUSH_SECONDS = 5.0
"""Longest time that `close` waits until all messages are sent."""


class ChannelClosedError(StreamsError):
    """The other process has ended or closed the channel: no response will arrive."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error and its causes in a form that can be sent: pickles drop the causes, and not every error can be pickled."""

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
    """Return the error itself if it can be pickled, else a StreamsError with its text."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 (whatever a user's error raises when it is copied)
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    return StreamsError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class _Request:
    number: int
    subject: object


@dataclass(frozen=True, slots=True)
class _Response:
    number: int
    value: object
    error: Failure | None


@dataclass(frozen=True, slots=True)
class _Notification:
    subject: object


_Message = _Request | _Response | _Notification


class Channel:
    """One end. `on_request` handles a request of the other side: it returns the response, or a future of it; what it raises is sent back.
    `on_notification` handles a notification. Both are called on the thread that runs `serve`, one message after the other."""

    def __init__(self, end: socket.socket, on_request: Callable[[object], object], on_notification: Callable[[object], None]) -> None:
        self._socket = end
        self._on_request = on_request
        self._on_notification = on_notification
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[object]] = {}
        self._closed = False
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writer.start()

    # -- to the other side -----------------------------------------------------------------------------------------------------

    def notify(self, subject: object) -> None:
        """Send a notification, which has no response. Raises StreamsError if it cannot be sent to another process; it is lost if the other
        side is gone."""
        self._put(_Notification(subject))

    def request(self, subject: object) -> Future[object]:
        """Send a request. The future fails with what the other side raised, or with ChannelClosedError. Raises StreamsError if the request
        cannot be sent to another process."""
        future: Future[object] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(ChannelClosedError("the worker's process has ended"))
                return future
            number = next(self._numbers)
            self._waiting[number] = future
        try:
            self._put(_Request(number, subject))
        except StreamsError:
            with self._lock:
                self._waiting.pop(number, None)
            raise
        return future

    def _put(self, message: _Message) -> None:
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
                return  # the other side is gone, which `serve` notices too

    # -- from the other side ---------------------------------------------------------------------------------------------------

    def receive(self) -> object:
        """Return the next notification, read on the caller's thread, before `serve`. Raises ChannelClosedError."""
        message = self._read()
        if not isinstance(message, _Notification):
            raise ChannelClosedError("the other process closed the channel before its first message")
        return message.subject

    def serve(self) -> None:
        """Handle messages until the other side is gone. Requests without a response fail then."""
        try:
            while (message := self._read()) is not None:
                self._handle(message)
        finally:
            with self._lock:
                self._closed = True
                waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                future.set_exception(ChannelClosedError("the worker's process has ended"))

    def _handle(self, message: _Message) -> None:
        match message:
            case _Notification(subject):
                self._on_notification(subject)
            case _Request(number, subject):
                self._handle_request(number, subject)
            case _Response(number, value, error):
                with self._lock:
                    future = self._waiting.pop(number, None)
                if future is not None and error is not None:
                    future.set_exception(error.error)
                elif future is not None:
                    future.set_result(value)

    def _handle_request(self, number: int, subject: object) -> None:
        try:
            answer = self._on_request(subject)
        except BaseException as error:  # noqa: BLE001 (it belongs to the caller on the other side)
            self._respond(number, None, error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._respond(number, None if done.exception() else done.result(), done.exception()))
        else:
            self._respond(number, answer, None)

    def _respond(self, number: int, value: object, error: BaseException | None) -> None:
        try:
            self._put(_Response(number, value, None if error is None else Failure.of(error)))
        except StreamsError as unsendable:
            self._put(_Response(number, None, Failure.of(unsendable)))

    def _read(self) -> _Message | None:
        """Return None at the end."""
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
        """Close the channel when all messages are sent, or after `FLUSH_SECONDS`."""
        self._outgoing.put(None)
        self._writer.join(FLUSH_SECONDS)
        self.shut_down()
        self._socket.close()

    def shut_down(self) -> None:
        """End `serve`, as if the other side were gone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the other side had closed the channel")
