"""The rights on brokers with an authorizer that an application and those around it need, each as Kafka's ACLs.

One principal per role: instances, operators (the command line and Dagster), Spark. Everything whose name begins with `<application.id>-` is
the application's own: internal topics, dead letters, the groups of its members, transactional ids. So an application whose id is another's
with a dash and more, `orders` and `orders-eu`, shares its rights with that one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.runtime.kafka.offsets_topic import OFFSETS_TOPIC
from penstock.runtime.topology.topology import Topology


class Role(StrEnum):
    """Who needs rights."""

    INSTANCE = "instance"
    """The application's own processes."""
    OPERATOR = "operator"
    """The command line and Dagster: state, alerts, run-books, resets."""
    SPARK = "spark"
    """Jobs that read state and history."""


class Resource(StrEnum):
    """Kind of resource; the value is the option of `kafka-acls`."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(StrEnum):
    """Operation as `kafka-acls` names it. Read and Write imply Describe, AlterConfigs implies DescribeConfigs."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"


_FILE = r"\$\{file:((?:[^${}]|\$\{\w+\})+)\}"


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on one resource, or on all whose names begin with `name`."""

    resource: Resource
    name: str
    operations: tuple[Operation, ...]
    why: str
    """What for, as `penstock acls` prints it."""
    prefixed: bool = False

    def command(self, principal: str, servers: str) -> str:
        """Return the command line of Kafka's tool that grants it to a principal (`User:orders`), from any host. `${NAME}` and
        `${file:PATH}` in the principal are left to the shell, which has the same environment."""
        target = "--cluster" if self.resource is Resource.CLUSTER else f"--{self.resource} '{self.name}'"
        pattern = " --resource-pattern-type prefixed" if self.prefixed else ""
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        return (
            f"kafka-acls --bootstrap-server {servers} --command-config admin.properties --add --allow-principal {_shell_word(principal)} "
            f"{operations} {target}{pattern}"
        )


def _shell_word(template: str) -> str:
    """Return a word of a command line in which the shell fills in what `penstock.runtime.config.environment` would."""
    if "${" not in template:
        return shlex.quote(template)
    text = re.sub(r'(["\\`]|\$(?!\{))', r"\\\1", template)
    return f'"{re.sub(_FILE, lambda found: f"$(cat {found[1]})", text)}"'


def rights(application: str, topology: Topology, role: Role) -> list[Right]:
    """Return what a role needs for an application with this topology (resolved). Topics that a pattern of the topology matches are not
    included: each needs what an input topic needs."""
    return list(_RIGHTS[role](application, topology))


def _instance(application: str, topology: Topology) -> Iterator[Right]:
    own = f"{application}-"
    for topic in _inputs(topology):
        yield Right(Resource.TOPIC, topic, (Operation.READ, Operation.DESCRIBE_CONFIGS), "input topic")
    for topic in _outputs(topology):
        yield Right(Resource.TOPIC, topic, (Operation.WRITE,), "output topic")
    configs = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    changes = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, *configs)
    yield Right(Resource.TOPIC, own, changes, "changelogs, repartition topics, coordination, events, dead letters", prefixed=True)
    yield Right(Resource.GROUP, application, (Operation.READ,), "committed offsets")
    yield Right(Resource.GROUP, own, (Operation.READ,), "membership", prefixed=True)
    yield Right(Resource.TRANSACTIONAL_ID, own, (Operation.WRITE,), "transactions", prefixed=True)


def _operator(application: str, topology: Topology) -> Iterator[Right]:
    own = f"{application}-"
    for topic in _inputs(topology):
        yield Right(Resource.TOPIC, topic, (Operation.READ, Operation.DESCRIBE_CONFIGS), "records that cannot be read, lag; reset")
    for topic in _inputs(topology):
        book = "restore-global-topic" if topic in topology.global_topics else "replay-dead-letters"
        yield Right(Resource.TOPIC, topic, (Operation.WRITE,), f"run-book {book}")
    for topic in _outputs(topology):
        emptied = (Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
        yield Right(Resource.TOPIC, topic, emptied, "rates; reset deletes its records, and lets brokers delete those of a compacted one")
    changes = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.DESCRIBE_CONFIGS)
    yield Right(Resource.TOPIC, own, changes, "observation, commands, dead letters; reset deletes them", prefixed=True)
    yield Right(Resource.GROUP, application, (Operation.READ, Operation.DELETE), "committed offsets: lag, shifts, reset")
    yield Right(Resource.GROUP, own, (Operation.READ, Operation.DELETE), "members", prefixed=True)
    yield Right(Resource.GROUP, "penstock-reader", (Operation.READ,), "readers, which join no group")
    yield Right(Resource.TOPIC, OFFSETS_TOPIC, (Operation.DESCRIBE,), "check of commits whose transaction hangs")
    yield Right(Resource.TRANSACTIONAL_ID, own, (Operation.WRITE,), "dead letters, reset", prefixed=True)
    yield Right(Resource.CLUSTER, "kafka-cluster", (Operation.DESCRIBE_CONFIGS,), "check of offsets that expire")


def _spark(application: str, topology: Topology) -> Iterator[Right]:
    restored = _restored_from(topology)
    for topic in _inputs(topology):
        if topic in restored:
            yield Right(
                Resource.TOPIC, topic, (Operation.READ, Operation.DESCRIBE_CONFIGS), "history, seeds; tables of stores that it restores"
            )
        else:
            yield Right(Resource.TOPIC, topic, (Operation.READ,), "history, seeds")
    for topic in _outputs(topology):
        yield Right(Resource.TOPIC, topic, (Operation.DESCRIBE,), "history: partitions of what it would write")
    own = f"{application}-"
    yield Right(Resource.TOPIC, own, (Operation.READ, Operation.DESCRIBE_CONFIGS), "changelogs", prefixed=True)
    if restored - set(topology.global_topics):
        yield Right(Resource.GROUP, application, (Operation.DESCRIBE,), "committed offsets: up to where an input restores a store")


_RIGHTS = {Role.INSTANCE: _instance, Role.OPERATOR: _operator, Role.SPARK: _spark}


def _restored_from(topology: Topology) -> set[str]:
    """Return the input topics that stores are restored from, in place of a changelog."""
    return {topic for part in topology.sub_topologies() for topic in part.source_changelogs.values()} | set(topology.global_topics)


def _inputs(topology: Topology) -> Sequence[str]:
    own = {topic.name for topic in topology.internal_topics()}
    return sorted({topic for part in topology.sub_topologies() for topic in part.source_topics} - own | set(topology.global_topics))


def _outputs(topology: Topology) -> Sequence[str]:
    return sorted(set(topology.sink_topics) - {topic.name for topic in topology.internal_topics()})
