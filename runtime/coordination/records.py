"""The records on `<app>-coordination`: one partition, compacted, JSON values. Its order is the order of events; an assignment's offset
is its epoch.

    key                 value          written by
    member/<who>        Member         the worker: on change, and as a heartbeat; tombstone: it left, or was fenced
    death/<who>         Death          a member that knows of another's end; tombstone: that member was fenced
    assignment          Assignment     the leader
    command/<id>        Command        a client; tombstone: it has its result
    result/<id>         CommandResult  whoever carried it out
    topology/<hash>     TopologyText   the members that run it
    desired/<instance>  Desired        the control plane: what should run (rules.md, 26)
    hold/<task>         Hold           the task's owner: it was paused by hand; tombstone: it was resumed

`<who>` is an incarnation of a worker: `<instance>/<worker>/<incarnation>`. The first version wrote `<instance>/<incarnation>`; that is
read as worker 1.
"""

from __future__ import annotations

import msgspec

from runtime.errors import StreamsError
from runtime.states import State, TaskKind, TaskState
from runtime.topology.shape import TopologyShape

MEMBER, ASSIGNMENT, COMMAND, RESULT, DESIRED, TOPOLOGY = "member", "assignment", "command", "result", "desired", "topology"
HOLD, DEATH = "hold", "death"


def who(instance: str, worker: int, incarnation: int) -> str:
    """The identity of a worker's incarnation, as it stands in keys."""
    return f"{instance}/{worker}/{incarnation}"


def who_of(text: str) -> str:
    """The identity that a key names, also in the form of the first version."""
    instance, _, rest = text.rpartition("/")
    worker = instance.rpartition("/")[2]
    return text if "/" in instance and worker.isdecimal() else f"{instance}/1/{rest}"


class PausedAt(msgspec.Struct, frozen=True, kw_only=True):
    """The record before which a task is paused, and why."""

    topic: str
    partition: int
    offset: int
    error_type: str | None = None
    error: str | None = None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far the restore of a task is: records restored; offsets up to the ends, at least as many as records to come; records per second,
    lately; seconds that it will take at the pace of the last seconds, None while there is none."""

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


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A worker. `worker`: its number in its instance, from 1; `workers`: how many its instance is to have; they share one state directory.
    `epoch`: the last assignment that it has carried out, -1 before the first. `leaves`: it wants to leave, and runs its tasks until others
    have learned them; `returns`: it is about to leave and will come back (rules.md, 4). `disk`: tasks on its disk, with the sum of their
    changelog offsets. `heartbeat_ms`: wall-clock time of this record. `application_server`: host:port under which others reach the
    instance, empty if it tells none. `rack` and `tags`: where it is (`client.rack`, `client.tag.*`)."""

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

    @property
    def who(self) -> str:
        return who(self.instance, self.worker, self.incarnation)

    @property
    def key(self) -> bytes:
        return f"{MEMBER}/{self.who}".encode()

    @property
    def active(self) -> set[str]:
        """The tasks that it runs, without those of which it keeps a copy."""
        return {task for task, report in self.tasks.items() if report.kind is TaskKind.ACTIVE}


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker may run, bound to the member id and the incarnation under which it was granted (rules.md, 21); and of which tasks
    it is to keep a copy, for good (`standby`) or until it may run them (`learner`)."""

    member_id: str
    incarnation: int
    instance: str
    active: list[str]
    standby: list[str] = []
    learner: list[str] = []
    worker: int = 1

    @property
    def who(self) -> str:
        return who(self.instance, self.worker, self.incarnation)


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's process has ended: said by another, `by` (an identity), that has it from the operating system. Nobody has to wait for the
    worker's session then. The first word about a death holds."""

    instance: str
    worker: int
    incarnation: int
    by: str
    at_ms: int

    @property
    def who(self) -> str:
        return who(self.instance, self.worker, self.incarnation)

    @property
    def key(self) -> bytes:
        return f"{DEATH}/{self.who}".encode()


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits for its worker to come back, until `until_ms` (wall-clock)."""

    instance: str
    until_ms: int
    worker: int = 1


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs what. `revoking`: tasks by the key of the member that may still run them, though they are not granted to it any more; they
    are granted anew when it has let go. `heirs`: who has a task, by its identity, from the moment at which the log says that all others
    have let go of it: it need not wait for the next assignment, which says so too. `reserved`: tasks kept for an instance that restarts."""

    leader: str
    grants: list[Grant]
    revoking: dict[str, list[str]] = {}
    heirs: dict[str, str] = {}
    reserved: dict[str, Reserved] = {}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done: by the owner of `task`, or by `instance`, and of its workers by this `worker` (None: by any that there are).
    `args` depends on `kind` (`worker/commands.py`)."""

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
    """How a command ended. `by` is the instance that answered."""

    id: str
    ok: bool
    reason: str = ""
    data: dict[str, object] = {}
    by: str = ""

    @property
    def key(self) -> bytes:
        return f"{RESULT}/{self.id}".encode()


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an instance should run, since when, and by whose will."""

    instance: str
    running: bool
    at_ms: int
    by: str

    @property
    def key(self) -> bytes:
        return f"{DESIRED}/{self.instance}".encode()


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A task that somebody paused by hand: a bad record stops each owner anew, but this pause is known by this record alone. `by`: the
    instance that carried it out."""

    task: str
    by: str
    at_ms: int

    @property
    def key(self) -> bytes:
        return f"{HOLD}/{self.task}".encode()


class TopologyText(msgspec.Struct, frozen=True, kw_only=True):
    """A topology as `describe()` prints it, so that it can be told how two differ, and what its state depends on. The last one that was
    written is the one that ran last."""

    hash: str
    text: str
    shape: TopologyShape | None = None
    """None in a record of an earlier version."""

    @property
    def key(self) -> bytes:
        return f"{TOPOLOGY}/{self.hash}".encode()


class Tombstone(msgspec.Struct, frozen=True):
    """A record that is no more: its kind and the rest of its key."""

    kind: str
    id: str


Told = Member | Death | Assignment | Command | CommandResult | Desired | Hold | TopologyText
Record = Told | Tombstone

ASSIGNMENT_KEY = ASSIGNMENT.encode()
_TYPES: dict[str, type[Told]] = {
    MEMBER: Member,
    DEATH: Death,
    ASSIGNMENT: Assignment,
    COMMAND: Command,
    RESULT: CommandResult,
    DESIRED: Desired,
    HOLD: Hold,
    TOPOLOGY: TopologyText,
}
_DECODERS = {kind: msgspec.json.Decoder(type_) for kind, type_ in _TYPES.items()}
_ENCODER = msgspec.json.Encoder()


def encode(record: Told) -> bytes:
    """The record's value on the topic."""
    return _ENCODER.encode(record)


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """The record, None for a kind that is not known (a later version's). Raises StreamsError for a value that cannot be read."""
    kind, _, rest = (key or b"").decode(errors="replace").partition("/")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    if value is None:
        return Tombstone(kind, who_of(rest) if kind == MEMBER else rest)
    try:
        found: Record = decoder.decode(value)
    except msgspec.DecodeError as error:
        raise StreamsError(f"coordination record {kind}/{rest} cannot be read: {error}") from error
    return found
