"""Partitions of the asset `instances`: one for each instance that is declared or was added by `scale`, kept in Dagster's storage.

They are dynamic, since instances are added and removed while the code location stays loaded: the sensor on instances and the jobs that
scale update them. Materializations of a deleted partition stay in Dagster's event log.
"""

from __future__ import annotations

import dagster as dg

from penstock.orchestration.instances.operations import Operations

PARTITIONS = "instances"
"""Name of the partitions definition in Dagster."""


def instance_names(operations: Operations) -> list[str]:
    """Return the names of all instances, in the order of `streams.toml`."""
    return [name for application in operations.applications.applications for name in operations.instances(application)]


def follow_instances(instance: dg.DagsterInstance, operations: Operations) -> None:
    """Add missing partitions and delete surplus ones."""
    wanted, there = instance_names(operations), instance.get_dynamic_partitions(PARTITIONS)
    missing = [name for name in wanted if name not in there]
    if missing:
        instance.add_dynamic_partitions(PARTITIONS, missing)
    for name in there:
        if name not in wanted:
            instance.delete_dynamic_partition(PARTITIONS, name)
