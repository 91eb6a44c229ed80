"""Paths of the endpoint, their parameters and handlers, without sockets and tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from penstock.runtime.config.streams_config import StreamsConfig
from penstock.runtime.coordination.fleet import Fleet
from penstock.runtime.coordination.streams_metadata import KeyQueryMetadata, StreamsMetadataState
from penstock.runtime.endpoint.answers import PROMETHEUS, Answer, Refusal, elsewhere, json_answer, later
from penstock.runtime.endpoint.forms import key_bytes, key_of, valued
from penstock.runtime.endpoint.parameters import Parameters
from penstock.runtime.endpoint.prometheus import prometheus_text
from penstock.runtime.endpoint.reads import MOST_ROWS, Page, Part, Scan, StoreReads
from penstock.runtime.model.errors import InvalidStateStoreError, StreamsError
from penstock.runtime.model.ids import HostInfo, changelog_topic
from penstock.runtime.model.metrics import MetricName
from penstock.runtime.model.states import State, TaskKind
from penstock.runtime.topology.catalogue import KnownStore
from penstock.runtime.worker.queries import StoreQuery, StoreQueryParameters

if TYPE_CHECKING:
    from penstock.runtime.worker.metadata import TaskMetadata, ThreadMetadata

USUAL_ROWS = 100
_KEY = ("key", "format", "stale", "isolation")
_PAGES = ("partition", "stale", "limit", "page", "reverse", "format", "isolation")


class Client(Protocol):
    """Methods of `KafkaStreams` that the endpoint uses."""

    @property
    def state(self) -> State: ...

    @property
    def config(self) -> StreamsConfig: ...

    @property
    def ms_since_progress(self) -> int: ...

    def metrics(self) -> Mapping[MetricName, float]: ...

    def metadata_for_local_threads(self) -> Collection[ThreadMetadata]: ...

    def store(self, parameters: StoreQueryParameters) -> StoreQuery: ...


class Routes:
    """Handlers by path. Thread-safe."""

    def __init__(self, client: Client, places: StreamsMetadataState, fleet: Callable[[], Fleet | None]) -> None:
        """`fleet`: returns the current state of all instances."""
        self._client = client
        self._places = places
        self._fleet = fleet
        self._application = client.config.application_id
        self._plain: dict[str, Callable[[], Answer]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/tasks": self._tasks,
            "/fleet": self._whole_fleet,
            "/stores": self._stores,
        }
        self._of_store: dict[str, tuple[tuple[str, ...], Callable[[KnownStore, Parameters, str], Answer]]] = {
            "owner": (("key", "format", "partition"), self._owner),
            "get": ((*_KEY, "as_of"), self._get),
            "range": ((*_PAGES, "from", "to", "prefix"), self._range),
            "fetch": ((*_PAGES, "key", "time", "from", "to"), self._fetch),
        }

    def answer(self, target: str) -> Answer:
        """Return the response to `GET target`; a refusal is a response too."""
        try:
            return self._answer(target)
        except Refusal as refusal:
            return refusal.answer

    @staticmethod
    def is_open(target: str) -> bool:
        """Return True for paths without authorization: a probe has no token."""
        return target.partition("?")[0] in ("/health", "/ready")

    def _answer(self, target: str) -> Answer:
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise Refusal(400, f"{target!r} is not an address: {error}") from error
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        plain = self._plain.get(parts.path.rstrip("/") or "/")
        if plain is not None:
            Parameters(parts.query, ())
            return plain()
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        if words[0] != "stores" or len(words) > 3:
            known = ", ".join((*self._plain, *(f"/stores/<store>/{name}" for name in self._of_store)))
            raise Refusal(404, f"there is nothing at {parts.path}: known are {known}")
        try:
            store = self._places.store(words[1])
        except InvalidStateStoreError as error:
            raise Refusal(404, str(error)) from error
        if len(words) < 3:
            Parameters(parts.query, ())
            return json_answer(self._described(store))
        if words[2] not in self._of_store:
            raise Refusal(404, f"there is no read {words[2]!r}: known are {', '.join(self._of_store)}")
        known_parameters, read = self._of_store[words[2]]
        return read(store, Parameters(parts.query, known_parameters), target)

    # -- the instance ----------------------------------------------------------------------------------------------------------

    def _health(self) -> Answer:
        """Liveness: no error has ended the client, and user code does not hang."""
        state, idle_ms = self._client.state, self._client.ms_since_progress
        ended = state in (State.PENDING_ERROR, State.ERROR, State.NOT_RUNNING)
        alive = not ended and idle_ms <= self._client.config.integer("max.poll.interval.ms")
        return json_answer({"alive": alive, "state": state.value, "ms_since_progress": idle_ms}, 200 if alive else 503)

    def _ready(self) -> Answer:
        """Readiness: tasks run and stores are complete."""
        ready = self._client.state is State.RUNNING
        return json_answer({"ready": ready, "state": self._client.state.value}, 200 if ready else 503)

    def _metrics(self) -> Answer:
        return Answer(200, prometheus_text(self._client.metrics()), PROMETHEUS)

    def _tasks(self) -> Answer:
        threads = sorted(self._threads(), key=lambda thread: thread.thread_name)
        return json_answer(
            [
                {
                    "thread": thread.thread_name,
                    "state": thread.thread_state,
                    "tasks": [_task(task) for task in sorted(_tasks_of(thread), key=lambda task: (task.task_id, task.kind.value))],
                }
                for thread in threads
            ]
        )

    def _threads(self) -> Collection[ThreadMetadata]:
        try:
            return self._client.metadata_for_local_threads()
        except StreamsError as error:
            raise later(str(error)) from error

    def _whole_fleet(self) -> Answer:
        fleet = self._fleet()
        if fleet is None:
            raise later("this instance has not read the other instances' records yet")
        members = [
            {
                "instance": member.instance,
                "worker": member.worker,
                "host": member.host,
                "application_server": member.application_server or None,
                "state": member.state.value,
                "heartbeat_ms": member.heartbeat_ms,
                "tasks": {
                    task: {"kind": report.kind.value, "state": report.state.value, "lag": report.lag}
                    for task, report in sorted(member.tasks.items())
                },
            }
            for member in sorted(fleet.members, key=lambda member: (member.instance, member.worker, member.incarnation))
        ]
        return json_answer({"application": self._application, "instance": fleet.instance, "members": members})

    # -- stores ----------------------------------------------------------------------------------------------------------------

    def _stores(self) -> Answer:
        return json_answer([self._described(store) for _, store in sorted(self._places.stores.items())])

    def _described(self, store: KnownStore) -> dict[str, object]:
        here = self._parts(store, stale=True)
        return {
            "store": store.name,
            "kind": store.kind,
            "global": store.is_global,
            "key_serde": None if store.key_serde is None else store.key_serde.name,
            "value_serde": None if store.value_serde is None else store.value_serde.name,
            "here": [part.shown() for part in here],
            "elsewhere": self._elsewhere(store, (part for part in here if part.kind is TaskKind.ACTIVE)),
        }

    def _parts(self, store: KnownStore, *, stale: bool) -> list[Part]:
        """Return the local parts by partition; with `stale` also copies."""
        if store.subtopology is None:
            return [Part(-1, TaskKind.ACTIVE, None)]
        fleet = self._fleet()
        found: dict[int, Part] = {}
        for task in (task for thread in self._threads() for task in _tasks_of(thread)):
            number = task.task_id.partition
            active = task.kind is TaskKind.ACTIVE
            if task.task_id.subtopology == store.subtopology and (active or (stale and number not in found)):
                found[number] = Part(number, task.kind, None if fleet is None else fleet.lag(task.task_id))
        return [found[number] for number in sorted(found)]

    def _elsewhere(self, store: KnownStore, here: Iterable[Part]) -> list[dict[str, object]]:
        """Return the partitions that are not local, with their owners; null without an owner."""
        mine = {part.partition for part in here}
        owners = enumerate(self._places.owners(store))
        return [{"partition": number, "owner": _address(owner)} for number, owner in owners if number not in mine]

    def _part(self, store: KnownStore, partition: int, stale: bool, target: str) -> Part:
        """Return the local part of a partition. Raises Refusal: it is elsewhere (307), or has no owner at the moment (503)."""
        found = next((part for part in self._parts(store, stale=stale) if part.partition == partition), None)
        if found is not None:
            return found
        self._check(store, partition)
        metadata = self._places.of_partition(store.name, partition)
        owner, own = metadata.active_host, self._client.config.application_server
        if owner == HostInfo.unavailable() and stale:
            owner = min(metadata.standby_hosts - {own}, default=owner)
        what = f"partition {partition} of store {store.name!r}"
        if owner == HostInfo.unavailable():
            copies = [str(host) for host in sorted(metadata.standby_hosts)]
            raise later(f"{what} is at no instance with a known address (application.server)", {"partition": partition, "standbys": copies})
        if owner == own:
            raise later(f"{what} is moving to this instance", {"partition": partition})
        raise elsewhere(owner, partition, target, f"{what} is elsewhere")

    def _check(self, store: KnownStore, partition: int) -> None:
        """Raise Refusal for a partition that the store does not have."""
        number = self._places.partitions(store)
        if store.is_global or partition >= number > 0:
            parts = "is global, and has no partitions" if store.is_global else f"has partitions 0 to {number - 1}"
            raise Refusal(400, f"store {store.name!r} {parts}: there is no {partition}")

    def _reads(self, store: KnownStore, parameters: Parameters) -> StoreReads:
        return StoreReads(store, self._topic(store), parameters.flag("stale"), parameters.isolation(), self._client.store)

    def _topic(self, store: KnownStore) -> str:
        """Return the topic that the store passes to serdes."""
        return store.source_changelog or changelog_topic(self._application, store.name)

    def _key(self, store: KnownStore, parameters: Parameters, text: str) -> object:
        assert store.key_serde is not None
        return key_of(text, parameters.form(), store.key_serde, self._topic(store))

    def _place(self, store: KnownStore, key: object) -> int:
        try:
            partition = self._places.partition(store.name, key)
        except StreamsError as error:
            raise Refusal(400, str(error)) from error
        if partition is None:
            raise later("this instance has not read the other instances' records yet")
        return partition

    def _owner(self, store: KnownStore, parameters: Parameters, _target: str) -> Answer:
        _readable(store, store.kind, "")
        partition, text = parameters.number("partition"), parameters.text("key")
        if (partition is None) == (text is None):
            raise Refusal(400, "one of the parameters key and partition is needed")
        if partition is None:
            partition = self._place(store, self._key(store, parameters, parameters.needed("key")))
        else:
            self._check(store, partition)
        found = self._places.of_partition(store.name, partition)
        if found == KeyQueryMetadata.NOT_AVAILABLE:
            raise later(f"partition {partition} of store {store.name!r} is at no instance with a known address (application.server)")
        standbys = [str(host) for host in sorted(found.standby_hosts)]
        return json_answer({"store": store.name, "partition": found.partition, "active": _address(found.active_host), "standbys": standbys})

    def _get(self, store: KnownStore, parameters: Parameters, target: str) -> Answer:
        _readable(store, "key_value versioned", "get")
        as_of = parameters.number("as_of")
        if as_of is not None and store.kind != "versioned":
            raise Refusal(400, f"store {store.name!r} keeps no versions: leave as_of out")
        key, stale = self._key(store, parameters, parameters.needed("key")), parameters.flag("stale")
        reads = self._reads(store, parameters)
        part = self._part(store, self._place(store, key), stale, target)
        return self._one(store, part, reads.get(part, key, as_of))

    def _one(self, store: KnownStore, part: Part, value: object) -> Answer:
        assert store.value_serde is not None
        return json_answer({"store": store.name, **part.shown(), **valued(value, store.value_serde, self._topic(store))})

    def _range(self, store: KnownStore, parameters: Parameters, target: str) -> Answer:
        _readable(store, "key_value versioned", "range")
        names = [name for name in ("from", "to", "prefix", "reverse") if parameters.text(name) is not None]
        if store.kind == "versioned" and names:
            raise Refusal(400, f"store {store.name!r} is versioned and can be read as a whole only: leave {', '.join(names)} out")
        prefix = parameters.text("prefix")
        if prefix is not None and len(names) > 1:
            raise Refusal(400, "prefix stands alone: leave from, to and reverse out")
        ends = [None if (text := parameters.text(name)) is None else self._key(store, parameters, text) for name in ("from", "to")]
        wanted = Scan(
            from_key=ends[0],
            to_key=ends[1],
            prefix=None if prefix is None else key_bytes(prefix) if parameters.form() == "base64" else prefix.encode(),
            backward=parameters.flag("reverse"),
        )
        return self._page(store, parameters, wanted, None, target)

    def _fetch(self, store: KnownStore, parameters: Parameters, target: str) -> Answer:
        _readable(store, "window session", "fetch")
        text, time = parameters.text("key"), parameters.number("time")
        key = None if text is None else self._key(store, parameters, text)
        place = None if key is None else self._place(store, key)
        if time is not None:
            if key is None or place is None or store.kind != "window":
                raise Refusal(400, "time is the start of one window of one key: give key too, and read sessions by from and to")
            unread = [name for name in ("from", "to", "reverse", "partition", "limit", "page") if parameters.text(name) is not None]
            if unread:
                raise Refusal(400, f"time means one window: leave {', '.join(unread)} out")
            stale, reads = parameters.flag("stale"), self._reads(store, parameters)
            part = self._part(store, place, stale, target)
            return self._one(store, part, reads.window(part, key, time))
        begin, end = parameters.number("from"), parameters.number("to")
        usual = Scan()
        wanted = Scan(
            key=key,
            time_from=usual.time_from if begin is None else begin,
            time_to=usual.time_to if end is None else end,
            backward=parameters.flag("reverse"),
        )
        return self._page(store, parameters, wanted, place, target)

    def _page(self, store: KnownStore, parameters: Parameters, scan: Scan, place: int | None, target: str) -> Answer:
        """Return rows of all local parts, or of the requested partition or that of the key."""
        stale, text, reads = parameters.flag("stale"), parameters.text("page"), self._reads(store, parameters)
        limit = parameters.number("limit", 1, MOST_ROWS) or USUAL_ROWS
        page = None if text is None else Page.read(text)
        asked = parameters.number("partition")
        number = asked if place is None else place
        parts = self._parts(store, stale=stale) if number is None else [self._part(store, number, stale, target)]
        if page is not None and page.partition not in {part.partition for part in parts}:
            raise Refusal(
                409,
                f"partition {page.partition}, where the page begins, is not read here any more: begin again",
                {"elsewhere": self._elsewhere(store, parts)},
            )
        rows, following = reads.page(parts, scan, page, limit)
        return json_answer(
            {
                "store": store.name,
                "rows": rows,
                "next": None if following is None else following.text(),
                "parts": [part.shown() for part in parts],
                "elsewhere": [] if number is not None else self._elsewhere(store, parts),
            }
        )


def _readable(store: KnownStore, kinds: str, read: str) -> None:
    """Raise Refusal (400) for a store without this kind of read."""
    if store.kind == "custom":
        raise Refusal(400, f"store {store.name!r} is a store of your own: it is read by KafkaStreams.store() in the program, not here")
    if store.kind not in kinds.split():
        other = "fetch" if read in ("get", "range") else "get or range"
        raise Refusal(400, f"store {store.name!r} is a {store.kind.replace('_', '-')} store: read it by {other}")


def _address(host: HostInfo) -> str | None:
    return None if host == HostInfo.unavailable() else str(host)


def _tasks_of(thread: ThreadMetadata) -> Collection[TaskMetadata]:
    return thread.active_tasks | thread.standby_tasks | thread.learner_tasks


def _task(task: TaskMetadata) -> dict[str, object]:
    return {
        "task": str(task.task_id),
        "kind": task.kind.value,
        "state": task.state.value,
        "committed_offsets": {f"{at.topic}-{at.partition}": offset for at, offset in task.committed_offsets.items()},
        "end_offsets": {f"{at.topic}-{at.partition}": offset for at, offset in task.end_offsets.items()},
        "topic_partitions": sorted(f"{at.topic}-{at.partition}" for at in task.topic_partitions),
    }
