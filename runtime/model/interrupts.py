"""Ctrl-C, as distinct from application code that raises KeyboardInterrupt.

Application code may raise any BaseException: `sys.exit()` in an operator is a failure like any other, and the handlers decide about it. So
the engine catches BaseException wherever it calls such code. Only a Ctrl-C of the program must pass. Python raises it on the main thread,
where the test driver processes records and some listeners run, and only while SIGINT has Python's own handler. Processes of instances and
workers install another handler, so a KeyboardInterrupt there is always the application's own. A topology's factory runs before that
handler is installed, and in commands; `distinct_ctrl_c` distinguishes the two there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class CtrlC(KeyboardInterrupt):
    """Ctrl-C of this program, inside `distinct_ctrl_c`."""


@contextmanager
def distinct_ctrl_c() -> Iterator[None]:
    """Raise Ctrl-C of this program as CtrlC, so that a KeyboardInterrupt of the code inside is recognised as that code's failure."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _raise_ctrl_c)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _raise_ctrl_c:  # the code inside may have installed its own handler
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _raise_ctrl_c(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise CtrlC


def is_ctrl_c(error: BaseException) -> bool:
    """Return True if the error may be a Ctrl-C of this program, which must stop it."""
    if isinstance(error, CtrlC):
        return True
    on_main_thread = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def pass_ctrl_c(error: BaseException, where: str) -> None:
    """Raise the error again if it may be a Ctrl-C of this program, with a note of where it arrived."""
    if is_ctrl_c(error):
        error.add_note(where)
        raise error
