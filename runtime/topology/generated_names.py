"""Internal resources with generated names (KIP-1111): stores, and the topics that contain their names.

A generated name contains the number of operations that were defined before. If an operation is inserted before it, the store gets another
name, and is empty. Explicit names avoid that; `ensure.explicit.internal.resource.naming` refuses a topology without them.
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
    """Return the generated ones among the names, in order. `given`: explicit names, although they look generated."""
    return [name for name in names if is_generated(name) and not any(name.startswith(each) for each in given)]


def is_generated(name: str) -> bool:
    """Return True if a name has the form of generated names."""
    return _GENERATED.search(name) is not None


def how_to_name(name: str) -> str:
    """Return the argument that names a store or repartition topic."""
    return next((how for form, how in _HOW if form.search(name)), _MATERIALIZED)
