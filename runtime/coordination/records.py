"""The records on `<app>-coordination`: one partition, compacted, JSON values. Its order is the order of events; an assignment's offset
is its epoch.

    key                     value          written by
    member/<identity>       Member         the worker: on change, and as a heartbeat; tombstone: it left, or was fenced
    death/<identity>        Death          a member that knows of another's end; tombstone: that member was fenced
    assignment              Assignment     the leader
    command/<id>            Command        a client; tombstone: it has its result
    result/<id>             CommandResult  the instance that carried it out
    topology/<digest>       TopologyText   each member that runs it
    shape/<n>/<identity>[/k]StateShape     a member whose topology was accepted, before it opens a store; a seed, before its state is
                                           written; the highest n holds, then the first
    desired/<instance>      Desired        the control plane: what should run (rules.md, 26)
    hold/<task>             Hold           the task's owner: it was paused by hand; tombstone: it was resumed
    reset                   Reset          `penstock reset`: the application begins without state; the last reset stays known
    shutdown                Shutdown       an instance whose uncaught-exception handler answered SHUTDOWN_APPLICATION: all members that
                                           were announced before it close

`<identity>` is an incarnation of a worker: `<instance>/<worker>/<incarnation>`. The first version wrote `<instance>/<incarnation>`; that is
read as worker 1.

Unknown fields and kinds of records are ignored, so members of different versions of Penstock read each other's records as long as the
major number of `PROTOCOL` is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from penstock.runtime.model.errors import StreamsError
from penstock.runtime.model.states import State, TaskKind, TaskState
from penstock.runtime.topology.shape import Part, TopologyShape

MEMBER, ASSIGNMENT, COMMAND, RESULT, DESIRED, TOPOLOGY = "member", "assignment", "command", "result", "desired", "topology"
HOLD, DEATH, SHAPE, RESET, SHUTDOWN = "hold", "death", "shape", "reset", "shutdown"
SEED = "seed"
"""Writer of the record of the state's shape when a seed is installed."""

SILENT_MS = 30_000
"""A member whose last record is older than this, ten heartbeats, is silent."""
PROTOCOL = "1.1"
"""Version of these records, major.minor. Members whose major numbers differ cannot run at once. Since 1.1, members name the shape of
their topology, and the leader uses it for the assignment."""


def identity(instance: str, worker: int, incarnation: int) -> str:
    """Return the identity of a worker's incarnation, as it stands in keys."""
    return f"{instance}/{worker}/{incarnation}"


def identity_of(text: str) -> str:
    """Return the identity that a key names, also in the form of the first version."""
    instance, _, rest = text.rpartition("/")
    worker = instance.rpartition("/")[2]
    return text if "/" in instance and worker.isdecimal() else f"{instance}/1/{rest}"


class PausedAt(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a paused task: the record in front of which it stopped, the error with its location, and the time of the pause."""

    topic: str
    partition: int
    offset: int
    error_type: str | None = None
    error: str | None = None
    location: str | None = None
    since_ms: int | None = None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the restore of a task or a global store: records restored; offsets remaining, an upper bound of the records remaining;
    recent rate in records per second; estimated seconds left at that rate, None while the rate is 0."""

    records: int
    remaining: int
    rate: float
    seconds_left: float | None = None


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a worker has open. `offset_sum`: sum of the committed next offsets of its input; `end_sum`: of the ends; `lag`: records
    between them, None while an end is unknown. Of standbys and learners, the same of its changelogs. `position`: sum of the next offsets
    of its stores' changelogs, in every kind. `caught_up`: a standby or learner that may become active now (rules.md, 25), or an active that
    processes or misses no more than such a one. `in_memory`: a part of its state is in no file, and ends with the process that has it open.
    `stateful`: it has stores, so there is something to checkpoint. `checkpoint_ms`: wall-clock time of the last checkpoint, ms.
    `restore`: of an active task that is being restored."""

    kind: TaskKind
    state: TaskState
    offset_sum: int
    end_sum: int
    lag: int | None
    position: int = 0
    caught_up: bool = False
    in_memory: bool = False
    stateful: bool = True
    checkpoint_ms: int | None = None
    paused: PausedAt | None = None
    restore: RestoreReport | None = None


class GlobalStoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's copy of a global store. `state`: RESTORING or RUNNING. `position`: sum of the next offsets of its topic's partitions;
    `end`: of their ends, as known to the worker; `lag`: records between them. `checkpoint_ms`: wall-clock time of the last checkpoint, ms.
    `restore`: while its topic is read up to the end. `reason`: why it is rebuilt (KIP-406), None for a first build and afterwards;
    `attempt`: number of that recovery, of several in a row; `waits`: it is wiped, and waits for its topic or for its delay."""

    topic: str
    state: TaskState
    position: int = 0
    end: int = 0
    lag: int = 0
    checkpoint_ms: int | None = None
    restore: RestoreReport | None = None
    reason: str | None = None
    attempt: int = 0
    waits: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. `worker`: its number in its instance, from 1; `workers`: how many its instance is to have; they share one state directory.
    `epoch`: the last assignment that it has carried out, -1 before the first. `leaves`: it wants to leave, and runs its tasks until others
    have learned them; `returns`: it is about to leave and will come back (rules.md, 4). `disk`: tasks on its disk, with the sum of their
    changelog offsets. `heartbeat_ms`: wall-clock time of this record. `application_server`: host:port under which others reach the
    instance, or empty. `rack` and `tags`: its location (`client.rack`, `client.tag.*`).
    `protocol`: the version of its records; `topology`: the digest of its `TopologyText`; `build`: fingerprint of its code and
    configuration (`runtime/instance/build.py`). Members before 1.1 name none of the three. `memory`: bytes of its process by part
    (`ProcessMemory.split`). `global_stores`: its copies of the global stores, by name. `written`: number of records that it has written
    to output and repartition topics since its process started, as of its last commit; None
    from members that do not say so. `throttled_ms`: longest delay of a request of its clients by a quota in the last
    minute. `heartbeats`: key of its heartbeats (`heartbeat_process.py`); empty while it sends none."""

    instance: str
    incarnation: int
    transactional_id: str
    host: str
    pid: int
    member_id: str = ""
    state: State = State.CREATED
    tasks: dict[str, TaskReport] = {}
    disk: dict[str, int] = {}
    topology_hash: str = ""
    epoch: int = -1
    leaves: bool = False
    returns: bool = False
    heartbeat_ms: int = 0
    log_path: str | None = None
    state_dir: str = ""
    metrics_port: int = 0
    worker: int = 1
    workers: int = 1
    application_server: str = ""
    rack: str = ""
    tags: dict[str, str] = {}
    protocol: str = "1.0"
    topology: str = ""
    build: str = ""
    memory: dict[str, int] = {}
    global_stores: dict[str, GlobalStoreReport] = {}
    written: int | None = None
    heartbeats: str = ""
    throttled_ms: int = 0

    @property
    def identity(self) -> str:
        return identity(self.instance, self.worker, self.incarnation)

    @property
    def key(self) -> bytes:
        return f"{MEMBER}/{self.identity}".encode()

    @property
    def active(self) -> set[str]:
        """Ids of its active tasks, without standbys and learners."""
        return {task for task, report in self.tasks.items() if report.kind is TaskKind.ACTIVE}


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks assigned to one worker, bound to the member id and the incarnation at the time of the grant (rules.md, 21): `active` to run,
    `standby` to keep a copy of, `learner` to copy until it may run them."""

    member_id: str
    incarnation: int
    instance: str
    active: list[str]
    standby: list[str] = []
    learner: list[str] = []
    worker: int = 1

    @property
    def identity(self) -> str:
        return identity(self.instance, self.worker, self.incarnation)


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """End of a worker's process, reported by another worker (`by`, an identity) that learned of it from the operating system or from its
    heartbeats, so that the leader need not wait for the session timeout. The first report of a death counts, unless its reporter was
    reported dead before."""

    instance: str
    worker: int
    incarnation: int
    by: str
    at_ms: int

    @property
    def identity(self) -> str:
        return identity(self.instance, self.worker, self.incarnation)

    @property
    def key(self) -> bytes:
        return f"{DEATH}/{self.identity}".encode()


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """Task kept for a worker that restarts, until `until_ms` (wall-clock)."""

    instance: str
    until_ms: int
    worker: int = 1


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Assignment of tasks to workers. `revoking`: tasks, by the key of a member that may still run them although they are no longer granted
    to it; they are granted again once it has released them. `heirs`: next owner of a task, by identity, as soon as the log shows that all
    others have released it, without waiting for the next assignment. `reserved`: tasks kept for an instance that restarts. `ran`: tasks by
    the digest of the topology that runs them, or ran them last. `cause`: why it differs from the one before (`decision.Cause`); empty in
    records of earlier versions."""

    leader: str
    grants: list[Grant]
    revoking: dict[str, list[str]] = {}
    heirs: dict[str, str] = {}
    reserved: dict[str, Reserved] = {}
    ran: dict[str, list[str]] = {}
    cause: str = ""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the owner of `task`, or to `instance`; `worker` addresses one of its workers, None all of them. `args` depends on `kind`
    (`worker/commands.py`)."""

    id: str
    kind: str
    task: str | None = None
    instance: str | None = None
    worker: int | None = None
    args: dict[str, object] = {}
    issued_by: str = ""
    issued_ms: int = 0

    @property
    def key(self) -> bytes:
        return f"{COMMAND}/{self.id}".encode()


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a command; `by` is the instance that answered."""

    id: str
    ok: bool
    reason: str = ""
    data: dict[str, object] = {}
    by: str = ""

    @property
    def key(self) -> bytes:
        return f"{RESULT}/{self.id}".encode()


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state of an instance: whether it should run, since when, and who decided it."""

    instance: str
    running: bool
    at_ms: int
    by: str

    @property
    def key(self) -> bytes:
        return f"{DESIRED}/{self.instance}".encode()


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Manual pause of a task. A bad record pauses each new owner by itself; a manual pause is known by this record alone. `by`: the
    instance that carried it out."""

    task: str
    by: str
    at_ms: int

    @property
    def key(self) -> bytes:
        return f"{HOLD}/{self.task}".encode()


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """Reset of an application. `id` names the reset: a state folder without that id is older. No instance starts before `ended`.
    `policies`: original cleanup.policy of output topics, which the reset changes while it deletes their records. `inputs`: topics whose
    offsets it sets, after it has deleted the committed ones. `options`: options of the command, for running it again. `back` and `to_ms`:
    the duration of `--to`, if it is one, and the time that it meant when the reset began."""

    id: str
    at_ms: int
    by: str
    ended: bool = False
    options: str = ""
    back: str = ""
    to_ms: int = 0
    policies: dict[str, str] = {}
    inputs: tuple[str, ...] = ()

    @property
    def key(self) -> bytes:
        return RESET.encode()


class Shutdown(msgspec.Struct, frozen=True, kw_only=True):
    """Request to all running instances to close (KIP-671). `by`: the instance that asks; `error`: the exception that its handler got. Only
    the last one is kept; it does not concern members that are announced after it."""

    by: str
    error: str
    at_ms: int

    @property
    def key(self) -> bytes:
        return SHUTDOWN.encode()


class TopologyText(msgspec.Struct, frozen=True, kw_only=True):
    """Topology as `describe()` prints it (to show differences), the shape that its state depends on, and its sub-topologies. The last
    record written belongs to the topology that ran last."""

    hash: str
    text: str
    shape: TopologyShape | None = None
    """None in a record of an earlier version."""
    parts: dict[int, Part] = {}
    """Empty in a record of protocol 1.0."""
    inputs: dict[str, int] = {}
    """Partitions of the input topics of sub-topologies with state. Empty in a record of an earlier version."""
    first_partitions: dict[str, int] = {}
    """Number of partitions of each input topic when the application first read it (`input_growth.first_partitions`). Empty in a record
    of an earlier version."""
    patterns: tuple[str, ...] = ()
    """Patterns of the sources."""
    call_sites: dict[str, str] = {}
    """The call and line that made a node, by the nodes with generated names. Empty in a record of an earlier version."""

    @property
    def digest(self) -> str:
        """Digest of text and shape. The number of tasks is left out: it grows with the input's partitions."""
        return hashlib.sha256(self.hash.encode() + _ENCODER.encode(self.shape)).hexdigest()[:16]

    @property
    def key(self) -> bytes:
        return f"{TOPOLOGY}/{self.digest if self.parts else self.hash}".encode()


class StateShape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the application's state: that of the topology accepted last, with all formats that entries may still have. `version`: one
    more than in the previous record; `by`: identity of the member that wrote it, or `SEED`; `seed`: id of the seed with which the state
    began, which each record carries on, empty if there was none or an earlier version of Penstock wrote the record.

    Each record has its own key, so that compaction keeps both of two concurrent ones; the later one is invalid. A repeated write uses
    another key (`attempt`): under the same key compaction would keep only the copy, whose offset lies behind other members' records.
    """

    version: int
    shape: TopologyShape
    by: str
    attempt: int = 0
    seed: str = ""

    @property
    def key(self) -> bytes:
        again = f"/{self.attempt}" if self.attempt else ""
        return f"{SHAPE}/{self.version}/{self.by}{again}".encode()


def newest(shapes: Iterable[StateShape]) -> StateShape | None:
    """Return the valid record, given all in log order: the highest version, and the first one of that version."""
    return max(shapes, key=lambda shape: shape.version, default=None)


class Tombstone(msgspec.Struct, frozen=True):
    """Deletion of a record: its kind and the rest of its key."""

    kind: str
    id: str


Written = Member | Death | Assignment | Command | CommandResult | Desired | Hold | Reset | Shutdown | TopologyText | StateShape
Record = Written | Tombstone

ASSIGNMENT_KEY = ASSIGNMENT.encode()
_TYPES: dict[str, type[Written]] = {
    MEMBER: Member,
    DEATH: Death,
    ASSIGNMENT: Assignment,
    COMMAND: Command,
    RESULT: CommandResult,
    DESIRED: Desired,
    HOLD: Hold,
    RESET: Reset,
    SHUTDOWN: Shutdown,
    TOPOLOGY: TopologyText,
    SHAPE: StateShape,
}
_DECODERS = {kind: msgspec.json.Decoder(type_) for kind, type_ in _TYPES.items()}
_ENCODER = msgspec.json.Encoder()


def encode(record: Written) -> bytes:
    """Return the record's value as written to the topic."""
    return _ENCODER.encode(record)


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """Return the record, or None for an unknown kind (of a later version). Raises StreamsError for a value that cannot be read."""
    kind, _, rest = (key or b"").decode(errors="replace").partition("/")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    if value is None:
        return Tombstone(kind, identity_of(rest) if kind == MEMBER else rest)
    try:
        found: Record = decoder.decode(value)
    except msgspec.DecodeError as error:
        raise StreamsError(f"coordination record {kind}/{rest} cannot be read: {error}") from error
    return found
