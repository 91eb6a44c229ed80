"""Examination of everything that a start of an application needs. Nothing is created or changed, here or on the brokers.

A broker that does not answer, or a setting that is wrong, ends nothing but what depends on it. Each request has a time-out. What a start
and a deploy check (`runtime/instance/precheck.py`) is left to them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._topic import TopicDescription

from penstock.orchestration.declarations.applications import Application
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.orchestration.doctor import brokers, machine, topics
from penstock.orchestration.doctor import principal as principals
from penstock.orchestration.doctor.brokers import Broker
from penstock.orchestration.doctor.clocks import clocks_and_quotas
from penstock.orchestration.doctor.finding import Finding, Outcome
from penstock.orchestration.doctor.granted import held_against
from penstock.orchestration.doctor.questions import Questions
from penstock.orchestration.instances.launcher import Launcher, LaunchError
from penstock.orchestration.rights import Role, rights
from penstock.runtime.config.streams_config import Property, StreamsConfig
from penstock.runtime.coordination.topics import coordination_topic
from penstock.runtime.kafka.api_versions import TOO_OLD
from penstock.runtime.kafka.clients import QUIET
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.failures import kafka_error, said
from penstock.runtime.kafka.first_contact import FirstContact
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.model.errors import BrokerUnavailableError, StreamsError
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology

CONTACT_SECONDS = 10.0
"""Wait for a first answer of the brokers."""
_CHECK_SECONDS = 120.0
_FACTORY = "factory"
"""Subject of a factory that ends the process which checks it, or does not return."""
_LOGIN_REMEDY = "the environment of this command should be that of the instances"
_SKIPPED = "not looked at, because {}"

Value = TypeVar("Value")


def examined(paths: ProjectPaths, application: Application, role: Role = Role.INSTANCE) -> Iterator[Finding]:
    """Yield the findings on a start of an application. `role`: whose rights this environment's login should have."""
    state = application.instances[0] if application.instances else application.id
    yield machine.folder(paths.state_dir(state).parent)
    connection, wrong = _tried(lambda: application.connection)
    contact = Finding("brokers", Outcome.UNKNOWN, _SKIPPED.format(wrong)) if connection is None else _contact(connection)
    answers = contact.outcome is Outcome.OK
    yield contact
    starts = role is not Role.SPARK  # which needs less
    found = list(_start(paths, application, with_brokers=answers and starts))
    yield from found
    hangs = any(each.subject == _FACTORY for each in found)
    topology, _ = (None, "") if hangs else _tried(lambda: _topology(paths, application))
    if connection is None or not answers:
        yield machine.open_files()
        for subject in ("topics", "rights", "clock", "quotas"):
            yield Finding(subject, Outcome.UNKNOWN, _SKIPPED.format("no broker answers"))
        return
    yield from _cluster(application, connection, topology, role)


def _contact(connection: Connection) -> Finding:
    """Return whether the brokers answer and accept the login."""
    login = " ".join(
        str(connection.settings[key]) for key in ("security.protocol", "sasl.mechanism", "sasl.mechanisms") if key in connection.settings
    )
    until = time.monotonic() + CONTACT_SECONDS
    contact = FirstContact(_config("doctor", connection, QUIET), lambda: time.monotonic() > until, quiet=True)
    try:
        contact.wait()
    except BrokerUnavailableError as error:
        if contact.refused:  # once: clients ask an issuer of tokens again after ten seconds
            return Finding("login", Outcome.WRONG, str(error).removesuffix(": given up"), _LOGIN_REMEDY)
        remedy = "start them (penstock broker start: the embedded one), or correct bootstrap.servers; see whether this machine reaches them"
        return Finding("brokers", Outcome.WRONG, str(error).removesuffix(": given up"), remedy)
    except StreamsError as error:
        return Finding("login", Outcome.WRONG, str(error), _LOGIN_REMEDY)
    return Finding("login", Outcome.OK, f"{connection} accepts this client ({login or 'PLAINTEXT, no login'})")


def _start(paths: ProjectPaths, application: Application, *, with_brokers: bool) -> Iterator[Finding]:
    """Yield what the check before a deploy finds."""
    remedy = "correct it, then run this again"
    try:
        found = Launcher(paths).precheck(application, application.instances, brokers=with_brokers, timeout_s=_CHECK_SECONDS)
    except (LaunchError, StreamsError) as error:
        yield Finding(_FACTORY, Outcome.WRONG, str(error), remedy)
        return
    yield from (Finding("start", Outcome.WRONG, problem) for problem in found.problems)
    yield from (Finding("start", Outcome.WARNING, warning) for warning in found.warnings)
    if not found.problems:
        fits = ", and the topology fits topics and state" if with_brokers else "; topics and state were not compared"
        yield Finding("start", Outcome.OK, f"configuration, variables and {application.factory} are right{fits}")


def _cluster(application: Application, connection: Connection, topology: Topology | None, role: Role) -> Iterator[Finding]:
    """Yield what brokers that answer say."""
    try:
        members = brokers.survey(connection)
        questions = Questions(connection)
        names = questions.topics()
    except KafkaException as error:
        yield Finding("brokers", Outcome.WRONG, f"{connection}: {said(kafka_error(error))}", "see whether this machine reaches them all")
        return
    yield from map(_broker, members)
    whole = not any(each.error for each in members)
    if topology is None:
        yield machine.open_files()
        for subject in ("topics", "rights"):
            yield Finding(subject, Outcome.UNKNOWN, _SKIPPED.format("the topology is not known"))
    else:
        topology = topology.matched(names) if topology.patterns else topology
        described = questions.described([*topology.source_topics, *(each.name for each in topology.internal_topics())])
        yield from _away(described, {each.id for each in members})
        counts = {name: len(each.partitions) for name, each in described.items() if not isinstance(each, KafkaError)}
        yield machine.open_files(topology, counts)
        copies, _ = _tried(lambda: int(application.value("replication.factor") or -1))
        yield from topics.examined(application.id, topology, questions, connection, copies=copies or -1, brokers=len(members))
        principal, remedy = principals.principal(application, connection)
        if remedy:
            yield Finding("login", Outcome.UNKNOWN, f"the principal of this login, for which commands below have {principal}", remedy)
        needed = rights(application.id, topology, role)
        yield from held_against(needed, questions, groups=whole, principal=principal, servers=str(connection))
    if role is not Role.SPARK:
        yield from _clocks(application, connection, names)


def _broker(found: Broker) -> Finding:
    text = f"broker {found.id} ({found.address})"
    if found.error:
        remedy = "start it, or see whether this machine reaches that address (advertised.listeners)"
        return Finding("brokers", Outcome.WRONG, f"{text} does not answer: {found.error}", remedy)
    if not found.release:
        return Finding("brokers", Outcome.WARNING, f"{text} {TOO_OLD}", "some requests may not be known there: upgrade it")
    return Finding("brokers", Outcome.OK, f"{text} answers: Kafka {found.release}")


def _away(described: Mapping[str, TopicDescription | KafkaError], there: Collection[int]) -> Iterator[Finding]:
    """Yield brokers that have copies of topics and are not in the cluster now: it lists only those that run."""
    topics = defaultdict[int, list[str]](list)
    for name, topic in described.items():
        if not isinstance(topic, KafkaError):
            for number in {node.id for part in topic.partitions for node in part.replicas} - set(there):
                topics[number].append(name)
    for number, names in sorted(topics.items()):
        yield Finding("brokers", Outcome.WARNING, f"broker {number} is away: it has copies of {', '.join(names)}", "start it")


def _clocks(application: Application, connection: Connection, names: frozenset[str]) -> Iterator[Finding]:
    topic = coordination_topic(application.id)
    if topic not in names:
        why = f"it shows in answers to reads of {topic}, which does not exist yet, or may not be seen"
        yield Finding("clock", Outcome.UNKNOWN, f"the brokers' clock: {why}")
        yield Finding("quotas", Outcome.UNKNOWN, f"whether brokers slow this client down: {why}")
        return
    config = _config(application.id, connection)
    partition = TopicPartition(topic, 0)
    try:
        end = TopicAdmin(config).end_offsets([partition])[partition]
    except StreamsError as error:
        yield Finding("clock", Outcome.UNKNOWN, f"the brokers' clock: {error}")
        return
    yield from clocks_and_quotas(application.id, config.consumer_properties("restore"), end)


def _config(application_id: str, connection: Connection, more: Mapping[str, Property] = MappingProxyType({})) -> StreamsConfig:
    """Return a configuration of the connection alone, so that a mistake elsewhere does not hide what the brokers say."""
    return StreamsConfig({"application.id": application_id, **connection.client(more)})


def _topology(paths: ProjectPaths, application: Application) -> Topology:
    paths.make_importable()
    with contextlib.redirect_stdout(sys.stderr):  # what the factory prints is no result
        return build_topology(application.factory).resolved(application.streams_config())


def _tried(make: Callable[[], Value]) -> tuple[Value | None, str]:
    """Return the value, or None and the error."""
    try:
        return make(), ""
    except (StreamsError, ValueError) as error:
        return None, str(error)
