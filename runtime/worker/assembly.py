"""Assembly of a worker: one function builds it from its specification and returns the complete object.

    consumer ── Reader ──► TaskManager ──► Committer ──► Transport ── producer(s)   Coordination: assignments and commands
                            ▲   ▲                                               GlobalTask: global tables
                  TaskFactory   Restorer                                        TopicAdmin: topics, ends, ids

All components live until the worker closes, or restarts because its input has other topics or partitions. Only a transport, with its
transactional id, lives as long as an incarnation (`incarnations.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from penstock.runtime.changelog.restore import Restorer
from penstock.runtime.commit.at_least_once import AtLeastOnce
from penstock.runtime.commit.exactly_once import ExactlyOnce
from penstock.runtime.commit.order import Transport
from penstock.runtime.coordination import Coordination
from penstock.runtime.coordination.previous_run import refuse_misfit
from penstock.runtime.coordination.resets import drop_state_of_before
from penstock.runtime.coordination.topics import TopicLayout, prepare_topics
from penstock.runtime.kafka.first_contact import FirstContact
from penstock.runtime.kafka.input_reader import Reader
from penstock.runtime.kafka.throttling import Throttling
from penstock.runtime.kafka.topic_admin import TopicAdmin
from penstock.runtime.kafka.topic_watch import TopicWatcher
from penstock.runtime.kafka.transactions import TransactionalProducer
from penstock.runtime.model.events import events_topic
from penstock.runtime.model.ids import TaskId
from penstock.runtime.model.metrics import THREAD
from penstock.runtime.seeds.first_state import FirstState
from penstock.runtime.seeds.journal import refuse_unfinished
from penstock.runtime.stores.budget import StoreMemory, show_memory
from penstock.runtime.stores.process_memory import ProcessMemory
from penstock.runtime.tasks.global_build import build_global_task
from penstock.runtime.tasks.global_dead_letters import GlobalDeadLetters
from penstock.runtime.tasks.global_task import GlobalTask
from penstock.runtime.tasks.incidents import Incidents
from penstock.runtime.worker.commands import Commands, SnapshotCommands
from penstock.runtime.worker.committer import Committer
from penstock.runtime.worker.coordination_handler import CoordinationHandler
from penstock.runtime.worker.followers import Followers
from penstock.runtime.worker.incarnations import Incarnations
from penstock.runtime.worker.input_partitions import InputPartitions
from penstock.runtime.worker.lock_waits import LockWaits
from penstock.runtime.worker.output_topics import OutputTopics
from penstock.runtime.worker.periodic_jobs import (
    CHANGELOGS_MS,
    MOVED_OFFSETS_MS,
    RECOMMIT_MS,
    PeriodicJobs,
    StateCleaner,
    purge_repartition_topics,
)
from penstock.runtime.worker.positions import Positions
from penstock.runtime.worker.recovery import Recovery
from penstock.runtime.worker.source_topics import SourceTopics
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.subscription import Subscription
from penstock.runtime.worker.task_factory import TaskFactory
from penstock.runtime.worker.task_manager import TaskManager
from penstock.runtime.worker.view import Publisher, View, show_tasks

logger = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> object: ...


_Opened = TypeVar("_Opened", bound=_Closable)


class Resources:
    """Everything that a worker has opened, in the order of opening."""

    def __init__(self) -> None:
        self._close: list[Callable[[], object]] = []

    def opened(self, resource: _Opened) -> _Opened:
        """Add a resource. Return it."""
        self._close.append(resource.close)
        return resource

    def add(self, close: Callable[[], object], *, closed_last: bool = False) -> None:
        """Add a function to call at the end."""
        self._close.insert(0 if closed_last else len(self._close), close)

    def close(self, *first: Callable[[], object]) -> None:
        """Call `first`, then close what was opened, last first. Failures are logged."""
        for close in (*first, *reversed(self._close)):
            try:
                close()
            except BaseException:
                logger.exception("a part of the worker could not be closed")
        self._close.clear()


@dataclass(frozen=True, slots=True)
class LoopCalls:
    """Functions of the worker's loop that its components call."""

    give_up: Callable[[], bool]
    """True when the time of a stop has run out."""
    start_given_up: Callable[[], bool]
    """True if the start is to be abandoned before the brokers have answered, or the components are being closed. Other threads call this
    after the start: their waiting is not progress."""
    close: Callable[[int | None], None]
    """Close the client, within a number of ms, on an operator's command."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """The components of one worker. Used by the worker's thread only, except `publisher.view`."""

    spec: WorkerSpec
    """The given specification, with the patterns of the topology matched."""
    coordination: Coordination
    handler: CoordinationHandler
    incarnations: Incarnations
    tasks: TaskManager
    followers: Followers
    global_task: GlobalTask | None
    reader: Reader
    restorer: Restorer
    committer: Committer
    recovery: Recovery
    jobs: PeriodicJobs
    publisher: Publisher
    sources: SourceTopics
    _subscription: Subscription
    _input_partitions: InputPartitions
    _resources: Resources

    def start(self) -> None:
        """Join, and begin to read the global tables. The loop builds them, however long that takes: as a member, this worker is known to
        live, and its tasks that read none of them process meanwhile (KIP-406).

        Raises BrokerUnavailableError, MissingSourceTopicError, StreamsConfigError, TaskMigratedError."""
        if self.global_task is None:
            self.incarnations.join()
            return
        self._resources.opened(self.global_task).check()
        self.incarnations.join()
        self.global_task.start()
        self.handler.report_global_stores()  # before the first assignment: tasks that read a table are not moved to where it is built

    def input_changed(self) -> bool:
        """Return True if a pattern of the topology matches other topics now, or input topics have new partitions to process: then this
        worker must restart. Never waits."""
        return self._subscription.changed() or self._input_partitions.have_grown()

    def has_tasks_to_hand_over(self, siblings_stay: bool) -> bool:
        """Return True while there are tasks here, and other members that could take them over."""
        return len(self.tasks) > 0 and self.coordination.has_heirs(siblings_stay)

    def listen(self, now_ms: int) -> None:
        """Handle records of the coordination topic and results of the topic watcher, and report this worker's tasks."""
        self.handler.listen()
        self.publisher.view.fleet = self.coordination.fleet()
        if recreated := self.sources.recreated():
            self.tasks.reset_positions(recreated)
        self.followers.advance()
        self.handler.report(self.publisher.state, now_ms)

    @property
    def builds_global_tables(self) -> bool:
        """True while a global table is read up to the end of its topic."""
        return self.global_task is not None and self.global_task.catching_up

    def step_global(self, timeout: float) -> bool:
        """Run one round of the global task, waiting at most `timeout` seconds for a record. Return True if it made progress."""
        return self.global_task is not None and self.global_task.step(timeout)

    def close_tasks(self) -> None:
        """Close the tasks and the processors of global stores, after a commit. Raises the first failure, for example ProcessingError of a
        processor's `close`, once all are closed."""
        try:
            self.tasks.close([task.id for task in self.tasks.all()])
        finally:
            if self.global_task is not None:
                self.global_task.close_processors()

    def close(self, *, clean: bool, leave_group: bool) -> None:
        """Close everything that was opened, last first; failures are logged. `clean`: `close_tasks` has succeeded."""
        leave = [lambda: self.coordination.leave(leave_group)]
        self._resources.close(*(leave if clean else ()))


def assemble(spec: WorkerSpec, incidents: Incidents, view: View, loop: LoopCalls, *, halted: bool) -> Assembly:
    """Connect, check and create topics, and build a worker that has not joined yet; `halted`: paused (KIP-834). On
    an error everything that was opened is closed.

    Raises BrokerUnavailableError, MissingSourceTopicError, WrongPartitionsError, TopologyError (it does not fit the state),
    StreamsConfigError, StateDirectoryError.
    """
    resources = Resources()
    try:
        return _assemble(spec, incidents, view, loop, resources, halted=halted)
    except BaseException:
        resources.close()
        raise


def _assemble(
    spec: WorkerSpec,
    incidents: Incidents,
    view: View,
    loop: LoopCalls,
    resources: Resources,
    *,
    halted: bool,
) -> Assembly:
    config, clock, directory, metrics, events = spec.config, spec.clock, spec.directory, spec.metrics, spec.events
    FirstContact(config, loop.give_up).wait()
    throttling = Throttling(clock)
    metrics.gauge_of("throttle-time-max", THREAD, throttling.recent_ms)
    reader = resources.opened(Reader(config, throttling.properties))

    # Check the topology against the state, and create topics, before anything is opened.
    topics = TopicAdmin(config, loop.start_given_up)
    watcher = TopicWatcher(clock)
    subscription = resources.opened(Subscription(spec.topology, topics.names, watcher))
    topology = subscription.topology
    spec = replace(spec, topology=topology)
    drop_state_of_before(config, topics, directory)
    acceptance = refuse_misfit(topology, config, topics, directory)
    layout = prepare_topics(topics, topology, config, had=acceptance.changelogs)
    _refuse_unfinished_seed(spec, layout, topics, TopicAdmin(config, loop.start_given_up))
    incidents.set_topology(topology, topics)

    # Tasks are made by the factory; state is restored by one restorer.
    memory = StoreMemory.configured(lambda key: spec.identity.share(config.integer(key)), config)
    logger.info("memory of the stores: %s", memory)
    show_memory(metrics, memory)
    dead_letter_topic = config["errors.dead.letter.queue.topic.name"]
    dead_letters = GlobalDeadLetters(str(dead_letter_topic) if dead_letter_topic else None)
    listeners = () if spec.restore_listener is None else (spec.restore_listener,)
    global_task = build_global_task(
        topology,
        config,
        directory,
        topics,
        watcher,
        clock,
        metrics,
        events,
        listeners,
        memory=memory,
        dead_letters=dead_letters,
        worker=spec.identity.number,
    )
    task_factory = TaskFactory(
        config=config,
        topology=topology,
        layout=layout,
        directory=directory,
        topics=topics,
        incidents=incidents,
        memory=memory,
        global_stores=global_task,
        clock=clock,
        metrics=metrics,
    )
    restorer = resources.opened(
        Restorer(
            {**config.consumer_properties("restore"), **throttling.properties},
            clock,
            metrics,
            events,
            listeners,
            standby_listeners=() if spec.standby_listener is None else (spec.standby_listener,),
            describe=task_factory.changelogs,
            watcher=watcher,
            most_bytes=memory.restore_bytes,
        )
    )
    process_memory = ProcessMemory(memory, lambda: restorer.held_bytes)
    process_memory.show(metrics)

    # Watches of the input topics: their ids, and their numbers of partitions.
    inputs = {topic for part in topology.sub_topologies() for topic in part.source_topics}
    sources = resources.opened(SourceTopics(task_factory.topic_ids, inputs, clock, watcher))
    sources.start()
    partition_counts = partial(topics.partition_counts, inputs)
    input_partitions = resources.opened(InputPartitions(partition_counts, topology, layout.partitions, events, watcher))
    input_partitions.start()
    written = {*topology.sink_topics, *(topic.name for topic in topology.internal_topics()), events_topic(spec.application_id)}
    outputs = resources.opened(OutputTopics(topics.shortages, written, watcher))
    outputs.start()

    # Tasks: none yet.
    coordination = resources.opened(
        Coordination(config, topology, layout, directory, topics, watcher, clock, acceptance, process_memory.split, throttling)
    )
    snapshots = config["snapshot.uri"]
    first_state = resources.opened(FirstState(str(snapshots) if snapshots else None, task_factory.changelogs, topics.start_offsets, clock))
    positions = Positions(task_factory, reader, topics, sources, events, clock, lambda: coordination.first_partitions)
    waits = LockWaits(clock)
    tasks = TaskManager(
        task_factory, reader, restorer, global_task, events, coordination, positions, waits, first_state, metrics, clock, halted=halted
    )
    resources.add(tasks.drop)
    recently_ms = 2 * config.integer("commit.interval.ms")
    followers = resources.opened(
        Followers(task_factory, restorer, clock, config.integer("acceptable.recovery.lag"), recently_ms, first_state)
    )

    # Commits, commands, and the published view.
    group, guard = reader.group(), coordination.membership.guard

    def transport(transactional_id: str) -> Transport:
        properties = {**config.producer_properties(), **throttling.properties}
        transactions = TransactionalProducer(properties, transactional_id, group, loop.give_up, layout.guard.topic, config.application_id)
        if config.exactly_once:
            return ExactlyOnce(transactions, guard, layout.guard, incidents)
        return AtLeastOnce(properties, transactions, guard, layout.guard, incidents, loop.give_up)

    incarnations = Incarnations(spec, transport, coordination, task_factory)
    resources.add(incarnations.close, closed_last=True)
    committer = Committer(
        spec,
        incarnations=incarnations,
        tasks=tasks,
        followers=followers,
        global_task=global_task,
        dead_letters=None if global_task is None else dead_letters,
        incidents=incidents,
        topics=topics,
        throttling=throttling,
    )
    publisher = Publisher(
        view,
        tasks=tasks,
        followers=followers,
        global_task=global_task,
        reader=reader,
        incarnations=incarnations,
        committer=committer,
    )
    show_tasks(metrics, view)
    snapshot_commands = SnapshotCommands(
        spec,
        tasks=tasks,
        stateful=_tasks_with_stores(spec, layout),
        commit=committer.commit,
        global_task=global_task,
    )
    resources.add(snapshot_commands.exports.close)
    resources.add(watcher.close)  # before its watches: each waits only for its own poll, and no other begins
    return Assembly(
        spec=spec,
        coordination=coordination,
        handler=CoordinationHandler(
            instance=spec.instance,
            coordination=coordination,
            commands=Commands(tasks=tasks, committer=committer, close=loop.close, snapshots=snapshot_commands, global_task=global_task),
            incarnations=incarnations,
            tasks=tasks,
            followers=followers,
            reader=reader,
            restorer=restorer,
            events=events,
            global_task=global_task,
            metrics=metrics,
            clock=clock,
            commit=committer.commit,
            written=lambda: committer.written,
            refresh_view=publisher.refresh,
        ),
        incarnations=incarnations,
        tasks=tasks,
        followers=followers,
        global_task=global_task,
        reader=reader,
        restorer=restorer,
        committer=committer,
        recovery=Recovery(
            tasks=tasks,
            followers=followers,
            global_task=global_task,
            committer=committer,
            incarnations=incarnations,
            incidents=incidents,
            metrics=metrics,
        ),
        jobs=_periodic_jobs(spec, tasks, followers, committer, coordination, topics, layout),
        publisher=publisher,
        sources=sources,
        _subscription=subscription,
        _input_partitions=input_partitions,
        _resources=resources,
    )


def _refuse_unfinished_seed(spec: WorkerSpec, layout: TopicLayout, topics: TopicAdmin, journal: TopicAdmin) -> None:
    application_id = spec.application_id
    parts = {part.id: part for part in spec.topology.sub_topologies()}
    logs = {log for task in layout.stateful for log in parts[task.subtopology].changelogs(application_id, task).values()}
    ids = {name: topic.topic_id for name, topic in topics.describe({log.topic for log in logs}).items()}
    refuse_unfinished(journal, application_id, logs, ids)


def _tasks_with_stores(spec: WorkerSpec, layout: TopicLayout) -> list[TaskId]:
    with_stores = {part.id for part in spec.topology.sub_topologies() if part.stores}
    return [task for task in layout.tasks if task.subtopology in with_stores]


def _periodic_jobs(
    spec: WorkerSpec,
    tasks: TaskManager,
    followers: Followers,
    committer: Committer,
    coordination: Coordination,
    topics: TopicAdmin,
    layout: TopicLayout,
) -> PeriodicJobs:
    config = spec.config
    cleaner = StateCleaner(spec.directory, coordination, spec.clock, config.integer("state.cleanup.delay.ms"))

    def clean_up() -> None:
        """Remove the state of tasks that have been elsewhere for a while: until then they may come back."""
        cleaner.run({*(task.id for task in tasks.all()), *(task.id for task in followers.all())})
        coordination.look_at_disk()

    purge = partial(purge_repartition_topics, tasks, layout.repartition_topics, topics.begin_deleting_records)
    jobs, now_ms = PeriodicJobs(), spec.clock.monotonic_ms()
    jobs.add("compare committed offsets", MOVED_OFFSETS_MS, tasks.check_moved_offsets, now_ms)
    jobs.add("check changelogs", CHANGELOGS_MS, tasks.check_changelogs, now_ms)
    jobs.add("commit idle offsets again", RECOMMIT_MS, committer.recommit, now_ms)
    jobs.add("purge repartition topics", config.integer("repartition.purge.interval.ms"), purge, now_ms)
    jobs.add("remove the state of tasks that moved away", cleaner.interval_ms, clean_up, now_ms)
    return jobs
