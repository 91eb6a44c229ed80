"""Calls into librdkafka that may never return.

`send_offsets_to_transaction` has been seen to ignore its time limit when the broker went away in the middle of it (librdkafka 2.16.0, one
broker stopped and started; the call was still inside after 60 s, with the broker back for long). A worker that waits for it stands
still for good. So such calls are made on a thread of their own. One that does not return in time is left there with its producer, which
is never touched again; the worker goes on with a new one. The hand-over costs some 50 µs a call, three or four times a commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class HungError(Exception):
    """The call did not return in time, and never may."""


class Courier:
    """Makes calls on a thread of its own, one after the other. Belongs to one thread."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.hung = False
        """True once a call did not return in time: no further call is made."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def call(self, function: Callable[[], Result], seconds: float, beside: Callable[[], None] | None = None) -> Result:
        """What `function` returns or raises. Raises HungError if it does not return within `seconds`, and at once after that.

        `beside` is done here meanwhile. What it raises is raised, and whatever is called next waits for `function` then."""
        if self.hung:
            raise HungError
        future: Future[Result] = Future()
        begun = threading.Event()

        def run() -> None:
            begun.set()
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 (it is the caller's)
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(run)
        if beside is not None:
            begun.wait(seconds)  # a thread that computes would let the other one begin only when its turn of 5 ms is over
            beside()
        try:
            return future.result(seconds)
        except FutureTimeoutError:
            if future.done():  # the function itself raised it
                raise
            self.hung = True
            raise HungError from None

    def close(self) -> None:
        """Ends the thread, unless it hangs."""
        self._calls.put(None)
