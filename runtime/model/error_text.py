"""Text of an exception that the application's code raised.

Its `__str__` may raise too, and text that it quotes from a record may not be encodable in UTF-8 (JSON escapes can produce lone surrogates).
Handlers must be called, and the record named, in spite of both.
"""

from __future__ import annotations

from penstock.runtime.model.interrupts import pass_ctrl_c


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
    return f"{type(error).__name__}: {text_of(error)}"


def writable(text: str) -> str:
    """Return the text, with escapes for characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
