"""What a worker is made of, how it is put together, and how it is put together again after a failure.

    consumer ── Reader ──► TaskSet ──► Commit ──► Transport ── producer(s)      Coordination: who runs what, and commands
                            ▲   ▲                                               GlobalTask: global tables
                      Planner   Restorer                                        TopicAdmin: topics, ends, ids

Consumer, restorer, admin and stores' memory live as long as the worker. A transport (with its transactional id) lives as long as an
*incarnation*: after a fence it is dropped, all tasks with it, and a new one joins under a new name (rules.md, 21).
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Iterable

from runtime.changelog.checkpoint import CheckpointInterval
from runtime.changelog.listeners import StandbyUpdateListener, StateRestoreListener
from runtime.changelog.restore import Restorer
from runtime.clock import Clock
from runtime.commit.at_least_once import AtLeastOnce
from runtime.commit.compare_and_set import CompareAndSet, Offsets
from runtime.commit.exactly_once import ExactlyOnce
from runtime.commit.order import Commit, Transport
from runtime.commit.transactions import TransactionalProducer
from runtime.config import StreamsConfig
from runtime.coordination import Coordination, Member
from runtime.coordination.former import refuse_misfit
from runtime.errors import BrokerUnavailableError, StreamsError, TaskCorruptedError, TaskMigratedError, TransactionAbortedError
from runtime.events import Event, EventKind, EventSink
from runtime.ids import Partition
from runtime.intake.reader import Reader
from runtime.metrics import THREAD, Metrics
from runtime.seeds.first_state import FirstState
from runtime.seeds.journal import refuse_unfinished
from runtime.states import State, TaskState
from runtime.stores.budget import StoreMemory, show_memory
from runtime.stores.directory import StateDirectory
from runtime.tasks.global_build import build_global_task
from runtime.tasks.global_letters import GlobalLetters
from runtime.tasks.incidents import Incidents
from runtime.topics import TopicAdmin, TopicLayout
from runtime.topology.topology import Topology
from runtime.worker.calls import Call, carry_out
from runtime.worker.chores import CHANGELOGS_MS, CLEAN_UP_MS, MOVED_OFFSETS_MS, RECOMMIT_MS, Chores
from runtime.worker.clients import await_broker, input_consumer
from runtime.worker.commands import Commands
from runtime.worker.followers import Followers
from runtime.worker.lock_waits import LockWaits
from runtime.worker.orders import Orders
from runtime.worker.plans import Planner
from runtime.worker.positions import Positions
from runtime.worker.seat import Seat
from runtime.worker.snapshotting import SnapshotCommands
from runtime.worker.source_topics import SourceTopics
from runtime.worker.subscription import Subscription
from runtime.worker.tasks import TaskSet
from runtime.worker.view import View

logger = logging.getLogger(__name__)

GLOBAL_STEP_SECONDS = 0.1
EVENTS_WAIT_MS = 500
"""How long an event waits for a commit at most, however long the commit interval."""


class Parts:
    """The parts of one worker, and the operations that need several of them. Belongs to the worker's thread but for `view`."""

    def __init__(
        self,
        *,
        config: StreamsConfig,
        topology: Topology,
        directory: StateDirectory,
        instance: str,
        clock: Clock,
        metrics: Metrics,
        events: EventSink,
        restore_listener: StateRestoreListener | None,
        standby_listener: StandbyUpdateListener | None,
        log_path: str | None,
        give_up: Callable[[], bool],
        ask_to_close: Callable[[int | None], None],
        seat: Seat,
        halted: bool,
        joins: Callable[[int], None],
    ) -> None:
        """Contacts nobody. `give_up`: true when a stop's time is up; `ask_to_close`: has the client closed; `halted`: begins paused
        (KIP-834); `joins`: hears of each incarnation before the application does. Raises StreamsConfigError if a handler cannot be made."""
        self._config = config
        self._topology = topology
        self._directory = directory
        self._instance = instance
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._log_path = log_path
        self._give_up = give_up
        self._ask_to_close = ask_to_close
        self._seat = seat
        self._halted = halted
        self._joins = joins
        self._listeners = () if restore_listener is None else (restore_listener,)
        self._standby_listeners = () if standby_listener is None else (standby_listener,)
        self._incidents = Incidents(config, events, metrics)
        dead_letters = config["errors.dead.letter.queue.topic.name"]
        self._letters = GlobalLetters(str(dead_letters) if dead_letters else None)
        self._commit_interval_ms = config.integer("commit.interval.ms")
        uncommitted_max = config.integer("statestore.uncommitted.max.bytes")
        self._uncommitted_max = math.inf if uncommitted_max < 0 else uncommitted_max
        self._checkpoints = CheckpointInterval(config.integer("statestore.checkpoint.interval.ms"), clock.monotonic_ms())
        self.most_buffered = config.integer("buffered.records.per.partition")
        self._exactly_once = config["processing.guarantee"] != "at_least_once"
        self._commits = metrics.latency("commit-latency", THREAD)
        self._committed = metrics.counter("commit-total", THREAD)
        self._committed_at_ms = clock.monotonic_ms()
        self.steps = 0
        """How many commits moved input forward: what a worker that was rolled back looks at to see whether it gets on again."""
        self._incarnation = 0
        self._state = State.CREATED
        self.view = View()
        self._chores = Chores()
        self._started: list[Callable[[], None]] = []
        """How to close what was opened, in the order of opening."""

    # -- start and end ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connects, checks and makes topics, builds global tables, joins. Raises BrokerUnavailableError, MissingSourceTopicError,
        WrongPartitionsError, TopologyError (it does not fit the state), StreamsConfigError, StateDirectoryError."""
        config, clock = self._config, self._clock
        consumer = input_consumer(config)
        self._consumer = consumer
        self._started.append(consumer.close)
        await_broker(consumer, config, self._give_up)
        self.topics = TopicAdmin(config)
        self._subscription = Subscription(self._topology, self.topics.names, clock)
        self._started.append(self._subscription.close)
        self._topology = self._subscription.topology
        refuse_misfit(self._topology, config, self.topics, self._directory)
        layout = self.topics.prepare(self._topology)
        self._layout = layout
        self._refuse_unfinished_seed(layout)
        self._incidents.know(self._topology, self.topics)
        memory = StoreMemory.configured(lambda key: self._seat.share(config.integer(key)))
        logger.info("memory of the stores: %s", memory)
        show_memory(self._metrics, memory)
        self.global_task = build_global_task(
            self._topology,
            config,
            self._directory,
            self.topics,
            clock,
            self._metrics,
            self._events,
            self._listeners,
            memory=memory,
            letters=self._letters,
            worker=self._seat.number,
        )
        self._planner = Planner(
            config=config,
            topology=self._topology,
            layout=layout,
            directory=self._directory,
            topics=self.topics,
            incidents=self._incidents,
            memory=memory,
            global_stores=self.global_task,
            clock=clock,
            metrics=self._metrics,
        )
        self.reader = Reader(consumer)
        self.restorer = Restorer(
            config.consumer_properties("restore"),
            clock,
            self._metrics,
            self._events,
            self._listeners,
            standby_listeners=self._standby_listeners,
            look=self._planner.changelogs,
        )
        self._started.append(self.restorer.close)
        read = {topic for part in self._topology.sub_topologies() for topic in part.source_topics}
        self._sources = SourceTopics(self._planner.topic_ids, read, clock)
        self._started.append(self._sources.close)
        self._sources.start()
        self._coordination = Coordination(config, self._topology, layout, self._directory, clock)
        self._started.append(self._coordination.close)
        snapshots = config["snapshot.uri"]
        first_state = FirstState(str(snapshots) if snapshots else None, self._planner.changelogs, self.topics.start_offsets, clock)
        self._started.append(first_state.close)
        positions = Positions(self._planner, self.reader, self._sources, self._events, clock)
        self.tasks = TaskSet(
            self._planner,
            self.reader,
            self.restorer,
            self.global_task,
            self._events,
            self._coordination,
            positions,
            LockWaits(clock),
            first_state,
        )
        self.tasks.halted = self._halted
        self._started.append(self.tasks.drop)
        lag = config.integer("acceptable.recovery.lag")
        self.followers = Followers(self._planner, self.restorer, clock, lag, 2 * self._commit_interval_ms, first_state)
        self._started.append(self.followers.close)
        if self.global_task is not None:
            self._build_global_tables()
        self._orders = self._new_orders()
        self._join()
        self._plan_chores()

    def _refuse_unfinished_seed(self, layout: TopicLayout) -> None:
        parts = {part.id: part for part in self._topology.sub_topologies()}
        logs = {log for task in layout.stateful for log in parts[task.subtopology].changelogs(self._config.application_id, task).values()}
        ids = {name: topic.topic_id for name, topic in self.topics.describe({log.topic for log in logs}).items()}
        refuse_unfinished(TopicAdmin(self._config), self._config.application_id, logs, ids)

    def other_topics_match(self) -> bool:
        """Whether a pattern of the topology matches other topics by now: then this worker must begin anew. Never waits."""
        return self._subscription.changed()

    def _build_global_tables(self) -> None:
        """Global tables are whole before any task processes: a task's `init` may read them."""
        assert self.global_task is not None
        self._started.append(self.global_task.close)
        self.global_task.start()
        while self.global_task.restoring and not self._give_up():
            self.global_task.step(GLOBAL_STEP_SECONDS)

    def _new_orders(self) -> Orders:
        with_stores = {part.id for part in self._topology.sub_topologies() if part.stores}
        snapshots = SnapshotCommands(
            application=self._config.application_id,
            instance=self._instance,
            directory=self._directory.path,
            seat=self._seat,
            tasks=lambda: self.tasks,
            stateful=[task for task in self._layout.tasks if task.subtopology in with_stores],
            commit=self.commit,
            global_task=self.global_task,
            clock=self._clock,
        )
        self._started.append(snapshots.exports.close)
        commands = Commands(
            tasks=lambda: self.tasks,
            commit=self.commit,
            unless_moved=self._unless_moved,
            close=self._ask_to_close,
            snapshots=snapshots,
            global_task=self.global_task,
        )
        return Orders(
            instance=self._instance,
            coordination=self._coordination,
            commands=commands,
            tasks=self.tasks,
            followers=self.followers,
            reader=self.reader,
            restorer=self.restorer,
            events=self._events,
            commit=self.commit,
            show=lambda: self.publish(self._state),
        )

    def _plan_chores(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._chores.add("look for moved offsets", MOVED_OFFSETS_MS, self.tasks.moved_offsets, now_ms)
        self._chores.add("look for lost changelogs", CHANGELOGS_MS, self.tasks.lost_changelogs, now_ms)
        self._chores.add("commit idle offsets again", RECOMMIT_MS, self._recommit, now_ms)
        purge_ms = self._config.integer("repartition.purge.interval.ms")
        self._chores.add("purge repartition topics", purge_ms, self._purge, now_ms)
        cleanup_ms = self._config.integer("state.cleanup.delay.ms")
        self._chores.add("remove the state of tasks that moved away", max(cleanup_ms, CLEAN_UP_MS), self._clean_up, now_ms)

    def _join(self) -> None:
        """Begins an incarnation: a transactional id of its own, announced after it was initialised (coordination.md, 7)."""
        incarnation = self._incarnation = max(self._clock.wall_ms(), self._incarnation + 1)  # the later one counts: clocks are set back
        transactional_id = f"{self._config.application_id}-{self._instance}-{incarnation}-{self._seat.number}"
        self._events.begin_incarnation(incarnation)
        self._joins(incarnation)
        self.transport = self._new_transport(transactional_id)
        self.transport.start()
        self._planner.attach(self.transport)
        self._commit = Commit(self.transport, self._events, self._config.application_id)
        self._orders.begin_incarnation()
        self._coordination.start(self._member(incarnation, transactional_id))

    def _new_transport(self, transactional_id: str) -> Transport:
        properties = self._config.producer_properties()
        transactions = TransactionalProducer(properties, transactional_id, self._consumer, self._give_up)
        guard = self._coordination.guard
        refusals = self._incidents
        if self._exactly_once:
            return ExactlyOnce(transactions, guard, self._layout.guard, refusals)
        return AtLeastOnce(properties, transactions, guard, self._layout.guard, refusals, self._give_up)

    def _member(self, incarnation: int, transactional_id: str) -> Member:
        return Member(
            instance=self._instance,
            incarnation=incarnation,
            transactional_id=transactional_id,
            host=socket.gethostname(),
            pid=self._seat.pid,
            log_path=self._log_path,
            state_dir=str(self._config.state_dir.resolve()),  # it tells whose disk this is
            metrics_port=self._config.metrics_port,
            application_server=str(self._config.application_server or ""),
            worker=self._seat.number,
            workers=self._seat.of,
        )

    def tell_the_end(self) -> None:
        """What ended the worker is published, and nothing else of what is not committed. Never raises: the broker may be what failed."""
        orders = getattr(self, "_orders", None)  # the start may be what failed
        if orders is None or not orders.granted:
            return
        try:
            self._forget_untrue_events()
            self.transport.abort()
            self._commit([])
        except StreamsError as error:
            logger.info("the end of this worker could not be published: %s", error)

    def close(self, *, clean: bool, leave_group: bool) -> None:
        """Closes everything that was opened, last first; what fails to close is logged."""
        steps = list(reversed(self._started))
        if clean:
            steps = [
                lambda: self.tasks.close([task.id for task in self.tasks.all()]),
                lambda: self._coordination.leave(leave_group),
                *steps,
            ]
        for close in steps:
            try:
                close()
            except Exception:
                logger.exception("a part of the worker could not be closed")
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.close()

    @property
    def moving(self) -> bool:
        """True while a task is on its way between members."""
        return self._coordination.moving

    def to_be_handed_over(self, siblings_stay: bool) -> bool:
        """True while there are tasks here, and others who could take them."""
        return len(self.tasks) > 0 and self._coordination.has_heirs(siblings_stay)

    def ask_to_leave(self) -> None:
        """Has other members take this one's tasks over."""
        self._coordination.ask_to_leave()

    # -- commit ----------------------------------------------------------------------------------------------------------------

    def commit(self, extra: CompareAndSet | None = None) -> bool:
        """Commits all tasks in the one order; tasks that want to pause are paused by it. False if there was nothing to commit.

        Before the first grant nothing can be committed, since the guard needs one: events wait. Raises TransactionAbortedError (then
        `roll_back`) or TaskMigratedError (then `begin_incarnation`).
        """
        if not self._orders.granted:
            return False
        started = self._clock.monotonic_ms()
        pausing = self.tasks.wanting_pause()
        for task in pausing:
            self.tasks.announce_pause(task)
        try:
            letters = self._letters.send(self.transport)
            done = self._commit(self.tasks.in_state(TaskState.RUNNING), extra)
        except (TransactionAbortedError, TaskMigratedError):
            self._forget_untrue_events()
            raise
        self._letters.written(letters)
        for task in pausing:
            self.tasks.pause(task)
        self._committed_at_ms = self._clock.monotonic_ms()
        if done:
            self.steps += self._commit.moved
            self._commits.record(self._committed_at_ms - started)
            self._committed.add()
        return done

    def _forget_untrue_events(self) -> None:
        """What was told of tasks' records since the last commit is not true after a rollback, and is told again when it comes to pass. (A
        global store is not rolled back, and its records are not read again.)"""
        untrue = (EventKind.TASK_PAUSED, EventKind.RECORD_SKIPPED)
        kept: list[Event] = [event for event in self._events.drain() if event.kind not in untrue or event.task is None]
        self._events.put_back(kept)

    def commit_if_due(self, now_ms: int) -> None:
        """Commits when the interval has passed, when too much is staged, when a processor asked for it, or when a task is to be paused."""
        waited = now_ms - self._committed_at_ms
        tasks = self.tasks
        if (
            waited >= self._commit_interval_ms
            or (waited >= EVENTS_WAIT_MS and self._events)
            or tasks.uncommitted_bytes > self._uncommitted_max
            or tasks.commit_requested
            or tasks.wanting_pause()
        ):
            self.commit()
            self._checkpoint_if_due(now_ms)

    def _checkpoint_if_due(self, now_ms: int) -> None:
        """KIP-116: looked at when a commit is due, so it acts in multiples of the commit interval. Tasks that have committed and restored
        nothing since their last one keep it."""
        if not self._checkpoints.is_due(now_ms):
            return
        for task in self.tasks.in_state(TaskState.RESTORING, TaskState.RUNNING, TaskState.PAUSED):
            if task.unsaved:
                offsets = task.checkpoint(self._clock.wall_ms())
                self._events.emit(EventKind.CHECKPOINT, {"stores": offsets}, task.id)
        for followed, offsets in self.followers.checkpoint().items():
            self._events.emit(EventKind.CHECKPOINT, {"stores": offsets}, followed)
        if self.global_task is not None:
            self.global_task.checkpoint()

    # -- the ways back ---------------------------------------------------------------------------------------------------------

    def roll_back(self) -> None:
        """Aborts the transaction and takes every task back to the last commit (rules.md, 10). Raises TaskMigratedError, or
        TransactionAbortedError if the broker does not answer: call it again then."""
        self._metrics.counter("rollback-total", THREAD).add()
        self._forget_untrue_events()
        self.transport.abort()
        try:
            self.tasks.rollback()
        except BrokerUnavailableError as error:
            raise TransactionAbortedError(f"the tasks cannot go back to their last commit yet: {error}") from error

    def wipe(self, error: TaskCorruptedError) -> None:
        """Empties and restores the tasks that the error names; the others go back to the last commit, unless only copies are meant."""
        error.let_go()
        if self.global_task is not None and self.global_task.damaged(error):
            self.roll_back()  # now that nothing begins that reads it before it is whole
            return
        self.followers.wipe(error)
        if any(task in self.tasks for task in error.tasks):
            self.roll_back()
            self.tasks.wipe(error)

    def rebuilt_since(self, error: TaskCorruptedError, found_ms: int) -> bool:
        """True if the error is about a global store that was rebuilt after it was found, at a monotonic time in ms."""
        return self.global_task is not None and self.global_task.rebuilt_since(error, found_ms)

    def begin_incarnation(self) -> None:
        """Others may own the tasks: closes all of them dirty, and joins under a new name."""
        self.tasks.drop()
        self._forget_untrue_events()
        self.transport.close()
        self._join()

    # -- listening -------------------------------------------------------------------------------------------------------------

    def listen(self, now_ms: int) -> None:
        """What the leader, operators and the brokers' list of topics say, and the report of this worker's tasks."""
        self._orders.listen()
        self.view.fleet = self._coordination.fleet()
        if anew := self._sources.made_anew():
            self.tasks.begin_anew(anew)
        self.followers.advance()
        self._orders.report(self._state, now_ms)

    # -- now and then ----------------------------------------------------------------------------------------------------------

    def step_global(self) -> bool:
        """A round of the global task; True if it moved."""
        return self.global_task is not None and self.global_task.step(0)

    def carry_out(self, call: Call, arguments: tuple[object, ...]) -> object:
        """What another thread asks for."""
        return carry_out(call, arguments, self.tasks, self._coordination, self._instance)

    def chores(self, now_ms: int) -> None:
        """What is due of the chores."""
        self._chores.run(now_ms)

    def _recommit(self) -> None:
        held = self.tasks.held_offsets()
        self.commit(self._unless_moved(held, held))

    def _unless_moved(self, wanted: Offsets, expected: Offsets) -> CompareAndSet:
        return CompareAndSet(wanted, expected, self._last_committed)

    def _last_committed(self, partitions: Iterable[Partition]) -> Offsets:
        """Asked in the middle of a transaction: what goes wrong leaves only the way back."""
        try:
            return self.topics.last_committed(self._config.application_id, partitions)
        except StreamsError as error:
            raise TransactionAbortedError(f"the committed offsets cannot be compared: {error}") from error

    def _clean_up(self) -> None:
        """The state of tasks that are elsewhere is removed when nothing was written to it for a while: until then they may come back."""
        owned = [*(task.id for task in self.tasks.all()), *(task.id for task in self.followers.all())]
        self._directory.clean(owned, self._config.integer("state.cleanup.delay.ms"), self._clock.wall_ms())
        self._coordination.look_at_disk()

    def _purge(self) -> None:
        """What has been processed of repartition topics is deleted (Kafka Streams' purge): nobody else reads them."""
        done: dict[Partition, int] = {}
        for task in self.tasks.in_state(TaskState.RUNNING):
            for partition, at in task.committed_offsets.items():
                if partition.topic in self._layout.repartition_topics and task.queues is not None:
                    # An offset that somebody moved forward while the task runs does not say that the records are done (rules.md, 19).
                    done[partition] = min(at.offset, task.queues[partition].next_offset)
        if done:
            self.topics.delete_records(done)

    def wait_seconds(self, now_ms: int, longest: float) -> float:
        """How long a poll may wait: not beyond the next commit, if there is something to commit."""
        if not self.transport.pending and not self._events:
            return longest
        left = (self._committed_at_ms + self._commit_interval_ms - now_ms) / 1000
        return max(0.0, min(longest, left))

    def state(self) -> State:
        """What the client's state should be (rules.md, 1)."""
        if not self._orders.granted:
            return State.REBALANCING
        if self.tasks.restoring or (self.global_task is not None and self.global_task.restoring):
            return State.RESTORING
        if self.tasks.starting:
            return State.REBALANCING
        return State.RUNNING

    def publish(self, state: State) -> None:
        """Swaps in what other threads see, if it changed or a commit was made."""
        changed = self.tasks.changed or self.followers.changed
        if state is not self._state or changed or self.view.published_ms < self._committed_at_ms:
            self._state = state
            self.view.publish(state, self.tasks.all(), self.followers.all(), self.reader, self.global_task, self._committed_at_ms)
            self.tasks.changed = self.followers.changed = False

    def instance_state(self, old: State, new: State) -> dict[str, object]:
        """The payload of INSTANCE_STATE."""
        return {"old": old.value, "new": new.value, "pid": self._seat.pid, "log_path": self._log_path}
