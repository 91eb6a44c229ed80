"""State of one application for the board, from the records of its topics and from offsets, as a document (`difference.Document`).

Everything that a page shows is decided here, so that it can be tested without a browser. Texts are data: the page shows them as text. The
document has only named fields of the records, so that a field which later versions add to them does not get onto the page by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

from penstock.orchestration.alerts import raw_bytes
from penstock.orchestration.alerts.launchpad import launchpad_path
from penstock.orchestration.board.difference import Document
from penstock.orchestration.drawing.description import parse
from penstock.orchestration.drawing.flow import Flow, flow
from penstock.orchestration.drawing.live import lags, newest_call_sites, newest_text
from penstock.orchestration.instances.launcher import Launcher
from penstock.orchestration.instances.seen_states import NOT_RUNNING, lives, state_of
from penstock.orchestration.kafka.event_text import brief
from penstock.orchestration.kafka.idle_tasks import idle_tasks
from penstock.orchestration.kafka.observer import FREQUENT, CoordinationLog, Flows, Picture
from penstock.orchestration.kafka.rates import Rates
from penstock.orchestration.kafka.topic_offsets import TopicOffsets
from penstock.orchestration.run_books import ResumeTask, SkipRecord
from penstock.runtime.coordination.records import GlobalStoreReport, Member, PausedAt, Reset, TaskReport, Tombstone
from penstock.runtime.model.events import Event, EventKind
from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.secrets import without_credentials
from penstock.runtime.model.states import TaskKind, TaskState
from penstock.runtime.stores.process_memory import RESIDENT

EVENTS_SHOWN = 60
_TEXT, _EVENT_TEXT = 2_000, 240


@dataclass(frozen=True, slots=True)
class Subject:
    """Application that the board shows. `instances`: the declared ones. `launcher`: of this machine's project, if it declares it."""

    application: str
    instances: tuple[str, ...] = ()
    launcher: Launcher | None = None
    dagster_url: str | None = None


class BoardState:
    """State of an application. Thread-safe: one thread reads topics, one reads offsets, and one makes documents."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._lock = Lock()
        self._error: str | None = None
        self._contact_ms: int | None = None
        self._missing = False
        self._begin()

    def _begin(self) -> None:
        self._complete = False
        self._log = CoordinationLog(self._subject.application)
        self._events: deque[tuple[int, Event]] = deque(maxlen=EVENTS_SHOWN)
        self._pauses: dict[str, Event] = {}
        self._ids: dict[str, None] = {}
        self._newest_event_ms = 0
        self._sequence = 0
        self._rates = Rates()
        self._most: dict[tuple[str, str], int] = {}
        self._behind: dict[TopicPartition, int] = {}
        self._partitions: dict[str, int] = {}
        self._rows: dict[str, tuple[Member, bool, dict[str, Document]]] = {}
        self._flow: tuple[str, Flow, Document] = ("", Flow(), {})

    # -- input -----------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget everything that was read, since it is read again from the start."""
        with self._lock:
            self._begin()

    def coordination(self, key: object, value: object) -> None:
        """Apply a record of the coordination topic."""
        with self._lock:
            record = self._log.apply(key, value)
            if isinstance(record, Tombstone):
                self._rows.pop(record.id, None)
            elif isinstance(record, Reset) and record.ended:
                self._forget_before(record.at_ms)

    def _forget_before(self, at_ms: int) -> None:
        """Forget what a reset has deleted. Later events stay: they may have been read before the record of the reset."""
        self._events = deque(((number, event) for number, event in self._events if event.at_ms >= at_ms), maxlen=EVENTS_SHOWN)
        self._pauses = {task: event for task, event in self._pauses.items() if event.at_ms >= at_ms}
        self._rates, self._behind = Rates(), {}

    def event(self, event: Event) -> None:
        """Apply an event. One that has been applied is ignored: at-least-once may publish it twice."""
        with self._lock:
            if event.id in self._ids:
                return
            self._newest_event_ms = max(self._newest_event_ms, event.at_ms)
            self._ids[event.id] = None
            if len(self._ids) > 10_000:
                self._ids.pop(next(iter(self._ids)))
            if event.kind is EventKind.TASK_PAUSED and event.task is not None:
                self._pauses[event.task] = event
            elif event.kind is EventKind.TASK_RESUMED and event.task is not None:
                self._pauses.pop(event.task, None)
            if event.kind not in FREQUENT:
                self._sequence += 1
                self._events.append((self._sequence, event))

    def offsets(
        self,
        found: TopicOffsets,
        partitions: Mapping[str, int],
        at_ms: int,
    ) -> None:
        """Apply offsets of the topology's topics, and numbers of partitions by topic."""
        with self._lock:
            self._partitions = dict(partitions)
            for place, end in found.ends.items():
                self._rates.add(("end", place), end, at_ms)
            for place, offset in found.committed.items():
                self._rates.add(("read", place), offset, at_ms)
            self._behind = found.behind

    def topics(self) -> tuple[set[str], set[str]]:
        """Return the topics of the topology: all of them, and those that its tasks read."""
        with self._lock:
            graph = self._drawn(self._log.picture({}))
        return graph.topics, set(graph.read_by_tasks)

    def contact(self, now_ms: int, *, missing: bool) -> None:
        """Note that a broker has answered. `missing`: the application has no coordination topic."""
        with self._lock:
            self._error, self._contact_ms, self._missing = None, now_ms, missing

    def complete(self) -> None:
        """Note that everything up to the present has been read."""
        with self._lock:
            self._complete = True

    def lost(self, error: str) -> None:
        """Note that no broker answers; what was read is shown as old."""
        with self._lock:
            self._error = without_credentials(error)

    @property
    def answered(self) -> bool:
        """True if the last request to the brokers was answered."""
        with self._lock:
            return self._error is None and self._contact_ms is not None and not self._missing

    # -- output ----------------------------------------------------------------------------------------------------------------

    def document(self, now_ms: int) -> Document:
        """Return everything that the page shows of the application. `now_ms`: wall-clock time."""
        with self._lock:
            return self._document(now_ms)

    def _document(self, now_ms: int) -> Document:
        if self._error is not None and self._contact_ms is not None:
            now_ms = min(now_ms, self._contact_ms)  # while no broker answers no instance is heard, and none is silent for that
        picture = self._log.picture(self._partitions)
        instances, members = self._instances(picture, now_ms)
        tasks: dict[str, Document] = {}
        for member in members:
            tasks.update(self._task_rows(member, now_ms))
        self._forget(members)
        idle = {each.task: each.reason for each in idle_tasks(picture, partial(lives, at_ms=now_ms), now_ms)}
        paused = self._paused(members)
        graph = self._drawn(picture)
        tasks.update(self._paused_lags(tasks, graph))
        topic_lags = self._topic_lags()
        body: dict[str, Document] = {
            "instances": instances,
            "tasks": tasks,
            "globals": dict(_global_rows(members)),
            "paused": paused,
            "idle": idle,
            "unread": {each.topic: f"tasks read {each.read} of {each.partitions} partitions" for each in picture.unread if members},
            "flow": self._flow[2],
            "rates": self._edge_rates(graph, now_ms),
            "lags": topic_lags,
            "late": {topic: True for topic, lag in topic_lags.items() if lags(lag, self._topic_rate("read", topic, now_ms))},
            "events": {str(number): _event_row(event) for number, event in self._events},
        }
        body["totals"] = _totals(body, picture)
        return {**body, "reading": self._reading(), "headline": self._headline(body, picture)}

    def _paused_lags(self, tasks: Mapping[str, Document], graph: Flow) -> Iterator[tuple[str, Document]]:
        """Yield the rows of paused tasks with the lag of their partitions. A paused task reads nothing, so the lag in its report is that
        at which it paused."""
        for key, row in tasks.items():
            if row["state"] == TaskState.PAUSED.value:
                number, partition = map(int, str(row["task"]).split("_"))
                places = [TopicPartition(topic, partition) for topic, part in graph.read_by_tasks.items() if part == number]
                known = [self._behind[place] for place in places if place in self._behind]
                if known:
                    yield key, {**row, "lag": sum(known)}

    def _topic_lags(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for place, lag in self._behind.items():
            if lag:
                found[place.topic] = found.get(place.topic, 0) + lag
        return found

    def _topic_rate(self, counter: str, topic: str, now_ms: int) -> float | None:
        """Return the records per second of a topic's partitions; None if no one's is known."""
        places = (TopicPartition(topic, number) for number in range(self._partitions.get(topic, 0)))
        known = [rate for place in places if (rate := self._rates.per_second((counter, place), now_ms)) is not None]
        return sum(known) if known else None

    def _instances(self, picture: Picture, now_ms: int) -> tuple[dict[str, Document], list[Member]]:
        """Return the row of each instance, and the newest record of each worker that runs."""
        newest: dict[tuple[str, int], Member] = {}
        for member in picture.members.values():
            at = (member.instance, member.worker)
            if at not in newest or newest[at].heartbeat_ms <= member.heartbeat_ms:
                newest[at] = member
        workers: dict[str, list[Member]] = {}
        for (instance, _), member in sorted(newest.items()):
            workers.setdefault(instance, []).append(member)
        rows: dict[str, Document] = {}
        living: list[Member] = []
        for name in picture.instances(self._subject.instances):
            own = workers.get(name, [])
            state = state_of(picture, name, self._subject.launcher, now_ms)
            desired = picture.desired.get(name)
            running = state not in (*NOT_RUNNING, "stopped")
            if running:
                living += own
            flows = Flows.together(self._log.flows(each, now_ms) for each in own) if running else Flows()
            last = max(own, key=lambda member: member.heartbeat_ms, default=None)
            rows[name] = _present(
                state=state,
                wanted=desired is not None and desired.running,
                host=None if last is None else last.host,
                pid=None if last is None else last.pid,
                workers=len(own) or None,
                rack=None if last is None else last.rack or None,
                memory=sum(member.memory.get(RESIDENT, 0) for member in own) or None,
                read=None if flows.read is None else _rounded(flows.read),
                written=None if flows.written is None else _rounded(flows.written),
                heard_ms=picture.heard_ms.get(name),
                leads=(picture.assignment is not None and picture.assignment.leader in {member.identity for member in own}) or None,
            )
        return rows, living

    def _task_rows(self, member: Member, now_ms: int) -> dict[str, Document]:
        """Return the rows of a worker's tasks, by task and instance; the same objects as before unless the worker has reported again."""
        known = self._rows.get(member.identity)
        fresh = any(self._log.rate(member, task, now_ms) is not None for task in member.tasks)
        if known is not None and known[0] is member and known[1] == fresh:
            return known[2]
        rows = {f"{task}@{member.instance}": self._task_row(member, task, report, now_ms) for task, report in member.tasks.items()}
        self._rows[member.identity] = (member, fresh, rows)
        return rows

    def _task_row(self, member: Member, task: str, report: TaskReport, now_ms: int) -> Document:
        rate = self._log.rate(member, task, now_ms)
        return _present(
            task=task,
            instance=member.instance,
            kind=report.kind.value,
            state=report.state.value,
            lag=report.lag,
            rate=None if rate is None else _rounded(rate),
            checkpoint_ms=report.checkpoint_ms if report.stateful else None,
            move=self._move(member.identity, task, report, rate),
        )

    def _move(self, identity: str, task: str, report: TaskReport, rate: float | None) -> Document | None:
        """Return the progress of a restore or of a copy that catches up: records left, of how many, per second, seconds left."""
        if report.restore is not None:
            left, of = report.restore.remaining, report.restore.remaining + report.restore.records
            return _present(left=left, of=of, rate=_rounded(report.restore.rate), seconds=_seconds(report.restore.seconds_left))
        learns = report.kind is TaskKind.LEARNER or (report.kind is TaskKind.STANDBY and not report.caught_up)
        if not learns or report.lag is None:
            self._most.pop((identity, task), None)
            return None
        most = self._most[identity, task] = max(report.lag, self._most.get((identity, task), 0))
        seconds = report.lag / rate if rate else None
        return _present(left=report.lag, of=most, rate=_rounded(rate or 0.0), seconds=_seconds(seconds))

    def _forget(self, members: Iterable[Member]) -> None:
        living = {member.identity for member in members}
        self._most = {key: most for key, most in self._most.items() if key[0] in living}

    def _paused(self, members: Iterable[Member]) -> dict[str, Document]:
        return {
            task: self._pause(task, member.instance, report.paused)
            for member in members
            for task, report in member.tasks.items()
            if report.paused is not None and report.kind is TaskKind.ACTIVE and report.state is TaskState.PAUSED
        }

    def _pause(self, task: str, instance: str, at: PausedAt) -> Document:
        """Return the paused task: its record, why, and the repair. The record's bytes are in its event."""
        event = self._pauses.get(task)
        place = (at.topic, at.partition, at.offset)
        payload = {} if event is None else event.payload
        if tuple(payload.get(name) for name in ("topic", "partition", "offset")) != place:
            payload = {}
        record = f"{at.topic}-{at.partition}@{at.offset}"
        application = self._subject.application
        asked = {"application": application, "task": task}
        error = _shown(f"{at.error_type}: {at.error}" if at.error_type else at.error)
        key, value = (_bytes(payload.get(name)) for name in ("key_base64", "value_base64"))
        facts: list[tuple[str, object]] = [("record", record), ("task", task), ("error", error)]
        facts += [(f"first bytes of the {part}", shown["text"]) for part, shown in (("key", key), ("value", value)) if shown]
        facts += [(f"step {step.name}", step.what) for step in (SkipRecord if at.error else ResumeTask).STEPS]
        if at.error:
            wanted = {**asked, "topic": at.topic, "partition": at.partition, "offset": at.offset}
            path = launchpad_path("skip_record", "skip", wanted, facts=facts)
            command = f"penstock run-book skip-record {application} {task} --record {record}"
        else:
            path = launchpad_path("resume_task", "resume", asked, facts=facts)
            command = f"penstock run-book resume {application} {task}"
        url = self._subject.dagster_url
        return _present(
            task=task,
            instance=instance,
            record=record,
            since_ms=at.since_ms,
            error=error,
            location=at.location,
            command=command,
            link=None if url is None else f"{url}{path}",
            key=key,
            value=value,
            absent=_absent(payload, application, task, by_hand=not at.error, comes=self._newest_event_ms < (at.since_ms or 0)),
        )

    def _drawn(self, picture: Picture) -> Flow:
        """Return the graph of the topology, computed again only when its text has changed."""
        text = newest_text(picture) or ""
        if text != self._flow[0]:
            graph = flow(parse(text, call_sites=newest_call_sites(picture))) if text else Flow()
            self._flow = (text, graph, _flow_document(graph))
        return self._flow[1]

    def _edge_rates(self, graph: Flow, now_ms: int) -> dict[str, object]:
        """Return records per second of each edge: of a topic's reader by committed offsets, of a writer by the topic's ends. A topic that
        others write too has the rate of all writers."""
        found: dict[str, object] = {}
        for edge in graph.edges:
            rate = self._topic_rate("read" if edge.reads and edge.topic in graph.read_by_tasks else "end", edge.topic, now_ms)
            if rate is not None:
                found[edge.key] = _rounded(rate)
        return found

    def _reading(self) -> Document:
        if self._error is not None:
            return _present(state="lost", error=_shown(self._error), since_ms=self._contact_ms)
        if self._contact_ms is None or (not self._complete and not self._missing):
            return {"state": "reading"}
        return {"state": "missing" if self._missing else "live"}

    def _headline(self, body: Mapping[str, Document], picture: Picture) -> Document:
        """Return the one sentence on the application, and its level: `bad`, `warn`, `busy`, `good` or `none`."""
        application, instances = self._subject.application, body["instances"]
        if self._missing:
            names = self._subject.instances
            start = f"penstock start {names[0]}" if names else "start an instance of it"
            return {"level": "none", "text": f"{application} has never been started on this Kafka. To start it: {start}"}
        if self._contact_ms is None:
            return {"level": "none", "text": "Reading …"}
        if (reset := picture.reset_text) is not None:
            return {"level": "bad", "text": f"{reset[0].upper()}{reset[1:]}"}
        if body["paused"]:
            first = _fields(next(iter(body["paused"].values())))
            text = f"Task {first['task']} is paused at {first['record']}"
            more = len(body["paused"]) - 1
            return {"level": "bad", "text": f"{text}, and {more} more {_plural(more, 'task')}" if more else text}
        if body["idle"]:
            count = len(body["idle"])
            return {"level": "bad", "text": f"{count} {_plural(count, 'task')} {'is' if count == 1 else 'are'} run by no instance"}
        away = [name for name, row in instances.items() if _fields(row).get("wanted") and _fields(row).get("state") in NOT_RUNNING]
        if away:
            return {"level": "warn", "text": f"{_listed(away)} should run: {_fields(instances[away[0]])['state']}"}
        if body["unread"]:
            return {"level": "warn", "text": f"Input topic {next(iter(body['unread']))} has partitions that no task reads"}
        totals = body["totals"]
        moving = totals["moving"]
        if rebuilt := [row for each in body["globals"].values() if (row := _fields(each))["state"] != TaskState.RUNNING.value]:
            copies = _listed([f"{row['store']} on {row['instance']}" for row in rebuilt])
            level = "warn" if any("reason" in row for row in rebuilt) else "busy"
            verb = "is" if len(rebuilt) == 1 else "are"
            return {"level": level, "text": f"Global {_plural(len(rebuilt), 'table')} {copies} {verb} being restored"}
        if moving:
            return {"level": "busy", "text": f"{moving} {_plural(int(str(moving)), 'task')} restoring or moving"}
        running, active = int(str(totals["running"])), int(str(totals["active"]))
        if not running:
            return {"level": "none", "text": f"{application} is stopped. To start it: penstock start {application}"}
        tasks = "1 task runs" if active == 1 else f"All {active} tasks run"
        return {"level": "good", "text": f"{tasks} on {running} {_plural(running, 'instance')}"}


def _totals(body: Mapping[str, Document], picture: Picture) -> Document:
    tasks = [_fields(row) for row in body["tasks"].values()]
    active = [row for row in tasks if row["kind"] == TaskKind.ACTIVE.value]
    running = [row for each in body["instances"].values() if (row := _fields(each)).get("state") not in (*NOT_RUNNING, "stopped")]
    read, written = ([rate for row in running if isinstance(rate := row.get(name), int | float)] for name in ("read", "written"))
    return _present(
        running=len(running),
        wanted=sum(desired.running for desired in picture.desired.values()),
        active=len(active),
        copies=len(tasks) - len(active),
        paused=len(body["paused"]),
        moving=sum("move" in row for row in tasks),
        lag=sum(lag for row in active if isinstance(lag := row.get("lag"), int)),
        rate=_rounded(sum(read)) if read else None,  # of what the instances show, so that it is their sum
        written=_rounded(sum(written)) if written else None,
        rate_of=min(len(read), len(written)) if min(len(read), len(written)) < len(running) else None,
    )


def _global_rows(members: Iterable[Member]) -> Iterator[tuple[str, Document]]:
    for member in members:
        for store, report in member.global_stores.items():
            number = "" if member.worker == 1 else f" (worker {member.worker})"
            yield f"{store}@{member.instance}{number}", _global_row(store, f"{member.instance}{number}", report)


def _global_row(store: str, at: str, report: GlobalStoreReport) -> Document:
    restore = report.restore
    move = None
    if restore is not None:
        of = restore.remaining + restore.records
        move = _present(left=restore.remaining, of=of, rate=_rounded(restore.rate), seconds=_seconds(restore.seconds_left))
    return _present(store=store, instance=at, state=report.state.value, lag=report.lag, reason=_shown(report.reason), move=move)


def _event_row(event: Event) -> Document:
    text = without_credentials(_event_text(event))
    text = text if len(text) <= _EVENT_TEXT else f"{text[:_EVENT_TEXT]}…"
    return _present(at_ms=event.at_ms, instance=event.instance, task=event.task, kind=event.kind.value, text=text or None)


def _event_text(event: Event) -> str:
    """Return the details of an event in one line."""
    detail = event.payload
    place = f"{detail.get('topic')}-{detail.get('partition')}"
    match event.kind:
        case EventKind.INSTANCE_STATE:
            reason = f": {detail['reason']}" if detail.get("reason") else ""
            return f"{detail.get('old')} → {detail.get('new')}{reason}"
        case EventKind.TASKS_ASSIGNED:
            counts = [
                f"{len(tasks)} {kind}" for kind in ("active", "standby", "learner") if isinstance(tasks := detail.get(kind), list) and tasks
            ]
            return f"{', '.join(counts) or 'no tasks'}; cause: {detail.get('cause')}"
        case EventKind.TASK_TAKEN_OVER:
            copied = "had a copy" if detail.get("copied") else "had no copy"
            return f"from {detail.get('from')}, after {detail.get('gap_ms')} ms; {copied}"
        case EventKind.TASK_PAUSED if detail.get("error"):
            return f"{place}@{detail.get('offset')}: {detail.get('error_type')}: {detail.get('error')}"
        case EventKind.RECORD_SKIPPED:
            return f"{place}@{detail.get('offset')}: {detail.get('error_type')}: {detail.get('error')}"
        case EventKind.RESTORE_STARTED if isinstance(stores := detail.get("stores"), dict):
            return ", ".join(stores)
        case _:
            return brief(detail)


def _flow_document(graph: Flow) -> Document:
    places = {
        place.key: _present(
            kind=place.kind.value,
            name=place.name,
            column=place.column,
            row=place.row,
            number=place.number,
            stores=list(place.stores) or None,
            nodes=list(place.nodes) or None,
        )
        for place in graph.places
    }
    edges = {edge.key: {"start": edge.start, "end": edge.end, "topic": edge.topic, "reads": edge.reads} for edge in graph.edges}
    return {"places": places, "edges": edges}


def _bytes(text: object) -> Mapping[str, object] | None:
    data = raw_bytes.from_base64(text)
    if data is None:
        return None
    return {"size": len(data), "text": raw_bytes.decoded(data), "hex": raw_bytes.hex_dump(data)}


def _absent(payload: Mapping[str, object], application: str, task: str, *, by_hand: bool, comes: bool) -> str | None:
    """Return why the bytes of a paused record are not shown; None if they are, or if a person paused the task. `comes`: events are read up
    to a time before the pause, since they are on another topic than the reports of tasks, perhaps on another broker."""
    if by_hand:
        return None
    if not payload and comes:
        return "The event of this pause, which has the bytes, is not read yet"
    if not payload:
        return f"The event of this pause is not among the last ones: penstock events {application} --kind TASK_PAUSED --task {task}"
    left_out = payload.get("left_out_bytes")
    return f"The record is too large for an event ({left_out} bytes); it is in its topic" if left_out else None


def _shown(text: str | None) -> str | None:
    if text is None:
        return None
    clean = without_credentials(text)
    return clean if len(clean) <= _TEXT else f"{clean[:_TEXT]}…"


def _present(**fields: object) -> dict[str, object]:
    """Return the fields that have a value: in a patch, null removes a key."""
    return {name: value for name, value in fields.items() if value is not None}


def _fields(row: object) -> Mapping[str, object]:
    assert isinstance(row, Mapping)
    return row


def _rounded(rate: float) -> float:
    return round(rate) if rate >= 10 else round(rate, 1)


def _seconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
