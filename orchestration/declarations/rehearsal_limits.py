"""Durations, limits and engines of rehearsals, as the command line and `streams.toml` write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

AUTO, SPARK, LOCAL = "auto", "spark", "local"
ENGINES = (AUTO, SPARK, LOCAL)
"""Where a rehearsal or an audit is computed: on Spark, on this machine, or on one of them by the number of records."""

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_ISO = re.compile(r"PT?(\d+(?:\.\d+)?)([SMHD])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def span_ms(text: str) -> int:
    """Return the milliseconds of a duration such as `6h`, `30min`, `1d` or `PT6H`. Raises ValueError that says what is expected."""
    found = _SPAN.fullmatch(text.strip()) or _ISO.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is not a duration: expected for example 6h, 30min, 90s, 1d or PT6H")
    return round(float(found[1]) * _UNIT_MS[found[2].lower()])


def allowances(given: Sequence[str]) -> dict[str, str]:
    """Return the limits of `NAME=N`, `NAME=P%` and `NAME=any`, by name. Raises ValueError."""
    found: dict[str, str] = {}
    for text in given:
        name, _, limit = text.rpartition("=")
        if not name or not re.fullmatch(r"\d+|\d+(\.\d+)?%|any", limit):
            raise ValueError(f"{text!r}: expected NAME=N keys, NAME=P% of the keys, or NAME=any, for example counts=10 or alerts=1%")
        found[name] = limit
    return found
