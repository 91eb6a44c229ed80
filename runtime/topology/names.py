"""Internal resources whose names were generated (KIP-1111): stores, and the topics that carry their names.

A generated name holds a number that counts what was defined before. Something new in front, and the store is another one, and empty. So
who gives names loses nothing; `ensure.explicit.internal.resource.naming` refuses a topology without them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_GENERATED = re.compile(r"(STATE-STORE|KSTREAM-[A-Z-]+|KTABLE-[A-Z-]+)-[0-9]{10}")
_HOW = (
    (re.compile(r"KTABLE-FK-JOIN-SUBSCRIPTION-"), "TableJoined(…)"),
    (re.compile(r"KTABLE-SUPPRESS-"), "Suppressed.….with_name(…)"),
    (re.compile(r"KSTREAM-(JOIN|OUTER)(THIS|OTHER|SHARED)-.*-store"), "StreamJoined(store_name=…)"),
    (re.compile(r"-Buffer$"), "Joined(name=…)"),
    (re.compile(r"KSTREAM-REPARTITION-"), "Repartitioned(…)"),
    (re.compile(r"KSTREAM-TOTABLE-[0-9]{10}-repartition"), "to_table(named=…)"),
    (re.compile(r"STATE-STORE-[0-9]{10}-repartition"), "Grouped(name=…)"),
    (re.compile(r"-repartition$"), "Joined(name=…) or StreamJoined(name=…)"),
)
_MATERIALIZED = "Materialized(…)"


def unnamed(names: Iterable[str], given: Collection[str]) -> list[str]:
    """Those of the names that were generated, in order. `given`: names that somebody gave, though they look generated."""
    return [name for name in names if is_generated(name) and not any(name.startswith(each) for each in given)]


def is_generated(name: str) -> bool:
    """Whether a name looks as those do that are generated."""
    return _GENERATED.search(name) is not None


def how_to_name(name: str) -> str:
    """What gives a store or repartition topic a name."""
    return next((how for form, how in _HOW if form.search(name)), _MATERIALIZED)
