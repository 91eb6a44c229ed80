"""Checks that an existing internal topic has the partitions and settings with which it would be created now.

A topic outlives the program that created it. Since then the input may have got more partitions, a store may have changed its kind, or
someone may have altered the topic. Continuing would look for keys in the wrong task, read windows as keys, or lose state at the next
restore. So each is an error, with the commands that repair it. A setting by which brokers may delete data later is a warning.

On a new machine the changelog's settings are the only evidence of a store's former kind: `compact` is for key-value and versioned stores,
`compact,delete` for window and session stores. (Local files show more: `runtime/changelog/adoption.py`. Rejected: a record of the layout on
the changelog, which Kafka Streams would restore as an entry.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.runtime.model.errors import StoreChangedError, StreamsError, WrongPartitionsError, by_reset

logger = logging.getLogger(__name__)

_COMPACT, _DELETE = "compact", "delete"


@dataclass(frozen=True, slots=True)
class InternalTopicCheck:
    """Check of an application's topics. Application and servers are named in the commands of messages. `additional_retention_ms` is
    `windowstore.changelog.additional.retention.ms`."""

    application_id: str
    servers: str
    additional_retention_ms: int

    def check(self, name: str, kind: str, found: tuple[int, Mapping[str, str]], wanted: tuple[int, Mapping[str, str]]) -> None:
        """Compare the partitions and settings of a topic. `kind` is `changelog`, `repartition` or `own` (coordination, events).

        Raises WrongPartitionsError, StoreChangedError or StreamsError, with the remedy.
        """
        if found[0] != wanted[0]:
            raise WrongPartitionsError(self._wrong_partitions(name, kind, found[0], wanted[0]))
        self._check_policy(name, kind, found[1], wanted[1])
        self._warn(name, found[1], wanted[1])

    def _wrong_partitions(self, name: str, kind: str, found: int, wanted: int) -> str:
        told = f"internal topic {name} has {found} partitions, but must have {wanted}"
        if kind == "own":
            return f"{told}: somebody else made it. {self._delete(name)} while no instance runs; it is made again"
        return (
            f"{told}, as its input has: the number of partitions of an input was changed, or somebody else made the topic. Keys would be "
            "looked for in the wrong task. Give the input its former number of partitions, or build the state again: "
            f"{by_reset(self.application_id)}"
        )

    def _check_policy(self, name: str, kind: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        has, needs = _policy(found), _policy(wanted)
        told = f"internal topic {name} has cleanup.policy={found.get('cleanup.policy')}, but must have {wanted['cleanup.policy']}"
        alter = self._alter(name, "cleanup.policy", f"[{wanted['cleanup.policy']}]")
        if _COMPACT in needs and _COMPACT not in has:
            raise StreamsError(f"{told}: brokers would delete what it holds. {alter}, then start again")
        if kind == "repartition" and _COMPACT in has:
            raise StreamsError(f"{told}: brokers would remove records that were not processed. {alter}, then start again")
        if kind != "changelog":
            return
        if _DELETE in has and _DELETE not in needs and _is_limited(found):
            raise StoreChangedError(
                f"{told}: brokers would delete keys that are not written for a while. If its store was a window or session store before, "
                f"give the store another name, or build it again: {by_reset(self.application_id)}. If only the topic was altered: {alter}"
            )
        if _DELETE in needs and _DELETE not in has:
            raise StoreChangedError(
                f"{told}: it was made for a key-value store, whose keys would be misread as windows. Give the store another name, or build "
                f"it again: {by_reset(self.application_id)}. If only the topic was altered: {alter}"
            )

    def _warn(self, name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        kept_ms, needed_ms = _number(found, "retention.ms"), _number(wanted, "retention.ms")
        if _DELETE in _policy(found) and needed_ms is not None and kept_ms is not None and self._is_short(kept_ms, needed_ms):
            logger.warning(
                "internal topic %s keeps records for %d ms only: what is older is missing after a restore. %s",
                *(name, kept_ms, self._alter(name, "retention.ms", str(needed_ms))),
            )
        lag_ms, needed_lag_ms = _number(found, "min.compaction.lag.ms"), _number(wanted, "min.compaction.lag.ms")
        if needed_lag_ms is not None and (lag_ms or 0) < needed_lag_ms:
            logger.warning(
                "internal topic %s may be compacted after %d ms: older versions of keys are missing after a restore. %s",
                *(name, lag_ms or 0, self._alter(name, "min.compaction.lag.ms", str(needed_lag_ms))),
            )

    def _is_short(self, kept_ms: int, needed_ms: int) -> bool:
        return kept_ms >= 0 and (needed_ms < 0 or kept_ms < needed_ms - self.additional_retention_ms)

    def _alter(self, name: str, setting: str, value: str) -> str:
        return (
            f"Set it: kafka-configs --bootstrap-server {self.servers} --alter --entity-type topics --entity-name {name} "
            f"--add-config {setting}={value}"
        )

    def _delete(self, name: str) -> str:
        return f"kafka-topics --bootstrap-server {self.servers} --delete --topic {name}"


def _policy(config: Mapping[str, str]) -> frozenset[str]:
    return frozenset(part.strip() for part in config.get("cleanup.policy", _DELETE).split(","))


def _is_limited(config: Mapping[str, str]) -> bool:
    """Return True if brokers delete records by time or size."""
    return config.get("retention.ms", "604800000") != "-1" or config.get("retention.bytes", "-1") != "-1"


def _number(config: Mapping[str, str], name: str) -> int | None:
    return int(config[name]) if name in config else None
