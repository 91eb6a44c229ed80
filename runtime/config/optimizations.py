"""Values of `topology.optimization` (Kafka Streams' key and values, KIP-295 and KIP-862)."""

from __future__ import annotations

from typing import Final

REUSE_TABLE_TOPICS: Final = "reuse.ktable.source.topics"
MERGE_REPARTITIONS: Final = "merge.repartition.topics"
SELF_JOIN: Final = "single.store.self.join"
_EVERY: Final = frozenset((REUSE_TABLE_TOPICS, MERGE_REPARTITIONS, SELF_JOIN))


def optimizations_of(text: str) -> frozenset[str]:
    """Return the optimizations that a value names: `none`, `all`, or a list separated by commas. Raises ValueError for an unknown one."""
    named = [part.strip() for part in text.split(",")]
    if named == ["none"]:
        return frozenset()
    if named == ["all"]:
        return _EVERY
    for name in named:
        if name not in _EVERY:
            raise ValueError(
                f"{name!r} is not an optimization: choose none, all, or some of {', '.join(sorted(_EVERY))}, divided by commas"
            )
    return frozenset(named)
