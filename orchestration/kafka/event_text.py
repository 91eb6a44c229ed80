"""Text of events."""

from __future__ import annotations

from collections.abc import Mapping


def brief(detail: Mapping[str, object]) -> str:
    """Format an entry's details as one line, without the bytes of records, stacks and ends of logs."""
    long = ("stack", "log_end")
    shown = {key: value for key, value in detail.items() if value not in (None, "") and key not in long and not key.endswith("_base64")}
    return ", ".join(f"{key} {value}" for key, value in shown.items())
