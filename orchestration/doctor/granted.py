"""The rights of this client, held against those that a role needs (`orchestration/rights.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaError

from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.orchestration.doctor.questions import Questions, allowed, nameless
from penstock.orchestration.rights import Operation, Resource, Right
from penstock.runtime.kafka.failures import Meaning, meaning, said

_IMPLIES_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE)


@dataclass(slots=True)
class _Seen:
    """Answer of the brokers on one right: operations that are not allowed, by resource, and unknown ones, with the reason."""

    missing: dict[Operation, str] = field(default_factory=dict)
    unknown: dict[Operation, str] = field(default_factory=dict)

    def add(self, operation: Operation, error: KafkaError | None, where: str) -> None:
        """Add the answer to a request that needs this operation."""
        if Meaning.NO_RIGHT in meaning(error):
            self.missing.setdefault(operation, where)
        elif error is not None:
            self.unknown.setdefault(operation, said(error))


def held_against(needed: Collection[Right], questions: Questions, *, groups: bool, principal: str, servers: str) -> Iterator[Finding]:
    """Yield a finding for each right. Without `groups`, those are not asked for that concern a coordinator."""
    topics = questions.topics()
    for right in needed:
        seen = _Seen()
        match right.resource:
            case Resource.TOPIC:
                _topics(seen, right, questions, topics)
            case Resource.GROUP if groups:
                _listed(seen, right, questions.of_group(f"{right.name}members" if right.prefixed else right.name))
            case Resource.TRANSACTIONAL_ID if groups:
                seen.add(Operation.WRITE, questions.transact(nameless(right.name)), right.name)
            case Resource.CLUSTER:
                seen.add(Operation.DESCRIBE_CONFIGS, questions.broker_settings(), right.name)
            case _:
                seen.unknown = dict.fromkeys(right.operations, "not asked for while a broker is away")
        yield _finding(right, seen, principal, servers)


def _finding(right: Right, seen: _Seen, principal: str, servers: str) -> Finding:
    target = f"{right.resource} {right.name}{'*' if right.prefixed else ''}"
    if seen.missing:
        where = ", ".join(sorted({place for place in seen.missing.values() if place != right.name}))
        missing = tuple(operation for operation in right.operations if operation in seen.missing)
        text = f"no right {_names(missing)} on {target}{f' (seen on {where})' if where else ''}: {right.why}"
        return Finding("rights", Outcome.WRONG, text, replace(right, operations=missing).command(principal, servers))
    if seen.unknown:
        why = "; ".join(dict.fromkeys(seen.unknown.values()))
        return Finding("rights", Outcome.UNKNOWN, f"{_names(seen.unknown)} on {target}: {why}")
    return Finding("rights", Outcome.OK, f"{_names(right.operations)} on {target}: {right.why}")


def _names(operations: Collection[Operation]) -> str:
    return ", ".join(operations)


def _listed(seen: _Seen, right: Right, answer: frozenset[str] | KafkaError) -> None:
    for operation in right.operations:
        if isinstance(answer, KafkaError):
            seen.add(operation, answer, right.name)
        elif operation.name not in answer:
            seen.missing[operation] = right.name


def _topics(seen: _Seen, right: Right, questions: Questions, topics: Collection[str]) -> None:
    there = [name for name in topics if name.startswith(right.name)] if right.prefixed else [right.name]
    found = questions.described(there)
    for name, answer in sorted(found.items()):
        for operation in right.operations:
            if operation is Operation.CREATE:
                continue  # the cluster's right is as good, and is not listed here
            if isinstance(answer, KafkaError):
                seen.add(operation, answer if operation in _IMPLIES_DESCRIBE else questions.attempt(name, operation), name)
            elif operation.name not in allowed(answer.authorized_operations):
                seen.missing.setdefault(operation, name)
    if not right.prefixed:
        return
    unused = nameless(right.name)
    if Operation.CREATE in right.operations:
        refused = questions.create(unused)
        seen.add(Operation.CREATE, refused if Meaning.NO_RIGHT in meaning(refused) else None, right.name)
    if there:
        return
    hidden = questions.attempt(unused, Operation.DESCRIBE)
    for operation in right.operations:
        if operation in _IMPLIES_DESCRIBE and hidden is not None:
            seen.add(operation, hidden, right.name)
        elif operation in (Operation.READ, Operation.WRITE):
            seen.unknown[operation] = "shows only once one of these topics exists"
        elif operation is not Operation.CREATE:
            seen.add(operation, questions.attempt(unused, operation), right.name)
