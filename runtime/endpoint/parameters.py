"""Query parameters of a request."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from penstock.runtime.endpoint.answers import Refusal
from penstock.runtime.endpoint.forms import FORMATS
from penstock.runtime.worker.queries import IsolationLevel

LONGEST_QUERY = 16_384
"""Characters; limits the length of a key."""


class Parameters:
    """Names and values. Each accessor raises Refusal (400) that names the valid values."""

    def __init__(self, query: str, known: Collection[str]) -> None:
        if len(query) > LONGEST_QUERY:
            raise Refusal(414, f"the parameters have {len(query)} characters: {LONGEST_QUERY} are the most")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
        except ValueError as error:
            raise Refusal(
                400, f"the parameters cannot be read: {error}; they are name=value, joined by &, in UTF-8 and %-escaped"
            ) from error
        self._values = dict(pairs)
        wrong = sorted(self._values.keys() - set(known))
        if wrong:
            raise Refusal(400, f"unknown parameter {', '.join(wrong)}: known here are {', '.join(known) or 'none'}")
        if len(pairs) > len(self._values):
            raise Refusal(400, "a parameter was given twice")

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def needed(self, name: str) -> str:
        value = self._values.get(name)
        if value is None:
            raise Refusal(400, f"parameter {name} is missing")
        return value

    def number(self, name: str, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(value) <= most):
            raise Refusal(400, f"{name} = {value!r} must be a whole number from {least} to {most}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._values.get(name, "false").lower()
        if value not in ("true", "false"):
            raise Refusal(400, f"{name} = {value!r} must be true or false")
        return value == "true"

    def isolation(self) -> IsolationLevel | None:
        """Return the isolation of a read; None for the default."""
        value = self._values.get("isolation")
        if value is None:
            return None
        try:
            return IsolationLevel(value.upper())
        except ValueError as error:
            raise Refusal(400, f"isolation = {value!r} must be read_committed or read_uncommitted") from error

    def form(self) -> str:
        value = self._values.get("format", "text")
        if value not in FORMATS:
            raise Refusal(400, f"format = {value!r} must be one of {', '.join(FORMATS)}")
        return value
