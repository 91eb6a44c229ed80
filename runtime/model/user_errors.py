"""Exceptions that the application's code raised: how they differ from Ctrl-C, and their text.

Application code may raise any BaseException: `sys.exit()` in an operator is a failure like any other, and the handlers decide about it. So
the engine catches BaseException wherever it calls such code. Only a Ctrl-C of the program must pass. Python raises it on the main thread,
where the test driver processes records and some listeners run, and only while SIGINT has Python's own handler. Processes of instances and
workers install another handler, so a KeyboardInterrupt there is always the application's own. A topology's factory runs before that
handler is installed, and in commands; `distinct_ctrl_c` distinguishes the two there.

An exception's `__str__` may raise too, and text that it quotes from a record may not be encodable in UTF-8 (JSON escapes can produce lone
surrogates). Handlers must be called, and the record named, in spite of both.
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


def text_of(error: BaseException) -> str:
    """Return `str(error)`, with escapes for characters that UTF-8 cannot encode."""
    try:
        text = str(error)
    except BaseException as failed:  # noqa: BLE001 (user code may raise anything)
        pass_ctrl_c(failed, f"the text of a {type(error).__name__}")
        text = f"(its text cannot be shown: {type(failed).__name__})"
    return writable(text)


def described(error: BaseException) -> str:
    """Return type and text of an error, for a message."""
    name, text = type(error).__name__, text_of(error)
    return f"{name}: {text}" if text else name


def writable(text: str) -> str:
    """Return the text, with escapes for characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
