"""Formats for bytes of records: decoded text, a hex dump, and base64 as in events."""

from __future__ import annotations

import base64

SHOWN = 2_048
"""Bytes of a key or value that an alert stores; the whole record is in its topic, its event and the dead-letter topic."""
_ROW = 16


def from_base64(text: object) -> bytes | None:
    """Decode base64; return None for anything that is not text."""
    return base64.b64decode(text) if isinstance(text, str) else None


def to_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def decoded(data: bytes | None, most: int = SHOWN, size: int | None = None) -> str:
    """Decode as UTF-8; invalid bytes and control characters are escaped: `\\xff`. `size`: the number of bytes, if `data` is only the
    beginning."""
    if data is None:
        return "null"
    text = data[:most].decode("utf-8", errors="backslashreplace")
    shown = "".join(char if char.isprintable() or char == " " else char.encode("unicode_escape").decode("ascii") for char in text)
    size = max(size or 0, len(data))
    return shown if size <= min(most, len(data)) else f"{shown}… ({size} bytes)"


def hex_dump(data: bytes | None, most: int = 256, size: int | None = None) -> str:
    """Return rows of sixteen bytes: position, hex, printable characters; `null` for None. `size`: as for `decoded`."""
    if data is None:
        return "null"
    rows = []
    for start in range(0, min(len(data), most), _ROW):
        row = data[start : min(start + _ROW, most)]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {characters}")
    more = max(size or 0, len(data)) - min(most, len(data))
    if more:
        rows.append(f"… {more} more bytes")
    return "\n".join(rows) or "(empty)"
