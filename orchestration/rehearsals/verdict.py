"""Verdict on a comparison: which stores and topics differ by more than is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.orchestration.rehearsals.comparison import Difference
from penstock.orchestration.rehearsals.rehearsal import Comparison

REJECTED = "rejected"
"""Name under which further rejected records are allowed."""


def failures(found: Comparison, allowed: Mapping[str, str]) -> list[str]:
    """Return what differs by more than is allowed, one sentence each; empty if the new build passes. `allowed`: by the name of a store or
    topic, a number of keys, a share of them, or `any` (`rehearsal_limits.allowances`). Records that the new build rejects and the running
    one does not count as `rejected`."""
    return [*_differing(found, allowed), *_rejected(found, allowed)]


def _differing(found: Comparison, allowed: Mapping[str, str]) -> Iterator[str]:
    for each in found.differences:
        limit = limit_of(each, allowed.get(each.name, "0"))
        if limit is not None and each.differing > limit:
            yield f"{each.label} differs at {each.differing:,} keys; {limit:,} are allowed"


def _rejected(found: Comparison, allowed: Mapping[str, str]) -> Iterator[str]:
    more, limit = found.reports[1].rejections - found.reports[0].rejections, allowed.get(REJECTED, "0")
    if more > 0 and limit != "any" and more > (int(limit) if limit.isdecimal() else float(limit[:-1]) / 100 * found.records):
        yield f"the new build rejects {more:,} records more than the running one"


def limit_of(difference: Difference, limit: str) -> int | None:
    """Return the number of keys that may differ; None for any."""
    if limit == "any":
        return None
    if limit.endswith("%"):
        return int(float(limit[:-1]) / 100 * max(difference.rows))
    return int(limit)


def unknown_names(found: Comparison, allowed: Mapping[str, str]) -> list[str]:
    """Return the allowances that name no store and no topic of either build."""
    return sorted(allowed.keys() - {each.name for each in found.differences} - {REJECTED})
