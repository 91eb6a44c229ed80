"""Partitions of the applications' assets: one for each instance that is declared or was added by `scale`, kept in Dagster's storage.

They are dynamic, since instances are added and removed while the code location stays loaded: the sensor on instances and the jobs that
scale update them. Materializations of a deleted partition stay in Dagster's event log.
"""

from __future__ import annotations

import dagster as dg

from penstock.orchestration.dagster.names import partitions_name
from penstock.orchestration.instances.operations import Operations


def follow_instances(instance: dg.DagsterInstance, operations: Operations) -> None:
    """Add missing partitions and delete surplus ones."""
    for application in operations.applications.applications:
        name = partitions_name(application.id)
        wanted, there = operations.instances(application), instance.get_dynamic_partitions(name)
        missing = [each for each in wanted if each not in there]
        if missing:
            instance.add_dynamic_partitions(name, missing)
        for each in there:
            if each not in wanted:
                instance.delete_dynamic_partition(name, each)
