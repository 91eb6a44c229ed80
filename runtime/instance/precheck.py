"""Check before a start: `python -m penstock.runtime.instance.precheck --config FILE …` tests whether instances would start now.

It runs in a process of its own and takes the same files as `python -m penstock.runtime.instance`, of instances of one application. It
creates and changes nothing, locally or on the brokers. The result is a JSON object on a line of stdout (`Findings`), with all problems
and not only the first.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.runtime.config.environment import setting
from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.compatibility import MOST_LINES, refusal_beside
from penstock.runtime.coordination.past import read_past
from penstock.runtime.coordination.previous_run import refuse_misfit
from penstock.runtime.coordination.records import MEMBER, SILENT_MS, TOPOLOGY, Member, TopologyText
from penstock.runtime.coordination.resets import last_reset, refuse_unfinished
from penstock.runtime.coordination.topics import coordination_topic, prepare_topics
from penstock.runtime.coordination.versions import topology_record
from penstock.runtime.instance.build import build_of
from penstock.runtime.instance.settings import InstanceSettings
from penstock.runtime.kafka.client_logs import KAFKA_LOGGER
from penstock.runtime.kafka.connection import Connection
from penstock.runtime.kafka.first_contact import FirstContact
from penstock.runtime.kafka.topic_admin import ANSWER_SECONDS, TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.model.clock import SystemClock
from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.events import EventSink
from penstock.runtime.model.metrics import Metrics
from penstock.runtime.stores.budget import StoreMemory
from penstock.runtime.stores.directory import StateDirectory
from penstock.runtime.tasks.global_task import CompactionCheck, refuse_not_compacted
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.topology.factory import build_topology
from penstock.runtime.topology.topology import Topology
from penstock.runtime.worker.subscription import Subscription

Value = TypeVar("Value")


class Findings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Result of the check. `problems` has no default, so that no other JSON that the factory's code prints is taken for a result.

    `problems`: reasons why instances would not start. `warnings`: what a start would log as a warning. `beside`: by name of a running
    instance, why they cannot run beside it, so that it must be stopped first. `changes`: lines of the topology that differ from the last
    one that ran. `builds`: the fingerprint of each instance (`runtime/instance/build.py`).
    """

    problems: list[str]
    warnings: list[str] = []
    beside: dict[str, str] = {}
    changes: list[str] = []
    builds: dict[str, str] = {}


def check(paths: list[Path], *, brokers: bool = True) -> Findings:
    """Check the instances of these files; without `brokers`, what can be checked without a request to them. Raises nothing; errors are
    findings."""
    found = Findings(problems=[])
    written = [settings for path in paths if (settings := _noted(found, InstanceSettings.written, path))]
    return check_settings(found, written, brokers=brokers)


def check_settings(
    found: Findings, written: list[InstanceSettings], build: Callable[[str], Topology] = build_topology, *, brokers: bool = True
) -> Findings:
    """Check the instances with these settings, whose variables are not replaced, and add the result to `found`. `build` calls a factory.
    Raises nothing."""
    with _kept_warnings(found.warnings):
        configs = [config for settings in written if (config := _config(found, settings))]
        for config in configs[:1]:
            with _noting(found):
                _check_handlers(config)
        factories = dict.fromkeys(settings.factory for settings in written)
        topologies = [topology for factory in factories if (topology := _noted(found, build, factory))]
        if topologies:
            found.builds = {settings.instance: build_of(settings.config, settings.factory) for settings in written}
            for config in configs[:1]:
                with _noting(found):
                    topology = topologies[0].resolved(config)
                    if brokers:
                        _check_topology(found, topology, config)
    found.problems, found.warnings = list(dict.fromkeys(found.problems)), list(dict.fromkeys(found.warnings))
    return found


@contextmanager
def _kept_warnings(texts: list[str]) -> Iterator[None]:
    """Add the engine's warnings to `texts`, except those of its Kafka clients, whose failed requests are problems."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.name.startswith(KAFKA_LOGGER.name):
                texts.append(record.getMessage())

    engine, kept = logging.getLogger(KAFKA_LOGGER.name.rpartition(".")[0]), Kept(logging.WARNING)
    engine.addHandler(kept)
    try:
        yield
    finally:
        engine.removeHandler(kept)


def _config(found: Findings, settings: InstanceSettings) -> StreamsConfig | None:
    """Return the configuration with its variables replaced; each variable that is not set is a problem."""
    before = len(found.problems)
    texts = {key: value for key, value in settings.config.items() if isinstance(value, str)}
    filled = {key: _noted(found, setting, value, key) for key, value in texts.items()}
    if len(found.problems) > before:
        return None
    whole = msgspec.structs.replace(settings, config={**settings.config, **filled})
    return _noted(found, StreamsConfig, whole.streams_config())


def _check_handlers(config: StreamsConfig) -> None:
    """Make what the configuration names by a dotted path. Raises StreamsConfigError."""
    clock = SystemClock()
    Incidents(config, EventSink(config.application_id, "", clock), Metrics(), clock)
    StoreMemory().set_rocks_options(config)


def _check_topology(found: Findings, written: Topology, config: StreamsConfig) -> None:
    until = time.monotonic() + ANSWER_SECONDS
    FirstContact(config, lambda: time.monotonic() > until, quiet=True).wait()
    topics = TopicAdmin(config)
    subscription = Subscription(written, topics.names, TopicWatcher(SystemClock()))
    try:
        topology = subscription.topology
        directory = StateDirectory(config.state_dir, config.application_id)
        with _noting(found):
            if (reset := last_reset(config, topics)) is not None:
                refuse_unfinished(reset, config.application_id)
            connection = Connection.of(config.admin_properties())
            tables = {table.topic: table.store.name for table in topology.global_stores() if not table.own_processor}
            policies = {topic: each.config.get("cleanup.policy", "") for topic, each in topics.describe(tables).items()}
            refuse_not_compacted(tables, policies, CompactionCheck(config.text("global.topic.compaction.check")), connection)
        before = len(found.problems)
        with _noting(found):
            refuse_misfit(topology, config, topics, directory)
        fits = len(found.problems) == before
        with _noting(found):
            layout = prepare_topics(topics, topology, config, make=False)
            if fits and coordination_topic(config.application_id) in topics.names():  # a misfit with the state is a problem already
                _check_beside(found, topology_record(topology, config.application_id, layout), config)
    finally:
        subscription.close()


def _check_beside(found: Findings, mine: TopologyText, config: StreamsConfig) -> None:
    """Compare the topology with those of the live members, and with the last one that ran."""
    texts = [record for record in read_past(config, TOPOLOGY) if isinstance(record, TopologyText)]
    versions = {text.digest: text for text in texts if text.parts}
    described = {text.hash: text.text for text in texts}
    if texts:
        lines = unified_diff(texts[-1].text.splitlines(), mine.text.splitlines(), "runs", "new", lineterm="", n=0)
        found.changes = [line for line in lines if not line.startswith("@@")][:MOST_LINES]
    alike: dict[tuple[str, str, str], list[Member]] = {}
    for member in _members(config):
        alike.setdefault((member.topology, member.topology_hash, member.protocol), []).append(member)
    for members in alike.values():
        refusal = refusal_beside(mine, members, versions, described)
        found.beside |= {} if refusal is None else {member.instance: str(refusal) for member in members}


def _members(config: StreamsConfig) -> list[Member]:
    """Return the members that are live according to their records."""
    since_ms = time.time_ns() // 1_000_000 - SILENT_MS
    found = (record for record in read_past(config, MEMBER) if isinstance(record, Member))
    return [member for member in found if not member.returns and member.heartbeat_ms >= since_ms]


def _noted(found: Findings, make: Callable[..., Value], *given: object) -> Value | None:
    """Return the result of a call; None if it fails, which is added as a problem."""
    made: Value | None = None
    with _noting(found):
        made = make(*given)
    return made


@contextmanager
def _noting(found: Findings) -> Iterator[None]:
    """Add an error as a problem and continue, even if the user's code raises SystemExit."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except StreamsError as error:
        found.problems.extend(map(str, (error, *error.further)))
    except BaseException as error:  # noqa: BLE001 (the factory's module may raise anything, SystemExit too)
        found.problems.append(f"{type(error).__name__}: {error}")


def main(arguments: list[str] | None = None) -> int:
    """Run the check. Returns exit status 0 if there are no problems, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.runtime.instance.precheck", description="Checks whether instances would start now."
    )
    parser.add_argument(
        "--config", type=Path, nargs="+", required=True, help="the files that python -m penstock.runtime.instance would be given"
    )
    parser.add_argument("--without-brokers", action="store_true", help="check the configuration and the factory alone")
    given = parser.parse_args(arguments)
    found = check(given.config, brokers=not given.without_brokers)
    print("\n" + msgspec.json.encode(found).decode())
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
