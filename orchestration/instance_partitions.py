"""The partitions of the asset `instances`: one for each instance that is declared or was asked for, kept in Dagster's own state.

They are dynamic, since instances come and go while the code location stays loaded: the sensor on instances and the jobs that scale keep
them in step. What a partition that is gone has materialised stays in Dagster's log.
"""

from __future__ import annotations

import dagster as dg

from orchestration.operations import Operations

PARTITIONS = "instances"
"""Their name in Dagster's state."""


def instance_names(operations: Operations) -> list[str]:
    """All of them, in the order of `streams.toml`."""
    return [name for application in operations.applications.applications for name in operations.instances(application)]


def differences(instance: dg.DagsterInstance, operations: Operations) -> tuple[list[str], list[str]]:
    """The partitions that are missing, and those that are too many."""
    wanted, there = instance_names(operations), instance.get_dynamic_partitions(PARTITIONS)
    return [name for name in wanted if name not in there], [name for name in there if name not in wanted]


def follow_instances(instance: dg.DagsterInstance, operations: Operations) -> None:
    """Brings the partitions in step."""
    missing, surplus = differences(instance, operations)
    if missing:
        instance.add_dynamic_partitions(PARTITIONS, missing)
    for name in surplus:
        instance.delete_dynamic_partition(PARTITIONS, name)
