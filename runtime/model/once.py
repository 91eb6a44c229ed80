"""Log lines that a process writes once."""

from collections.abc import Hashable

_seen: set[Hashable] = set()


def first_time(*what: Hashable) -> bool:
    """Return True for the first call with these arguments in this process."""
    if what in _seen:
        return False
    _seen.add(what)
    return True
