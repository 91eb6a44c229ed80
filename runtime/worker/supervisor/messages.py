"""Messages between an instance's process and those of its workers (`channel.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.runtime.model.states import State
from penstock.runtime.stores.base import StoreLayout
from penstock.runtime.worker.queries import StoreQueryParameters
from penstock.runtime.worker.rpc import Call
from penstock.runtime.worker.spec import WorkerIdentity
from penstock.runtime.worker.state_queries import StateQueryRequest
from penstock.runtime.worker.supervisor.channel import Failure

# -- notifications to a worker, besides `Stop` ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message: everything that a worker needs. `settings` are those of the client; `factory` is `module:function`; `log_levels`
    are those of the instance's process by logger, "" for the root; `stacks` is a file descriptor to which the stacks of all threads are
    written at SIGUSR1."""

    settings: Mapping[str, object]
    factory: str
    instance: str
    identity: WorkerIdentity
    halted: bool
    log_path: str | None
    log_levels: Mapping[str, int]
    stacks: int
    restore_listener: bool
    standby_listener: bool


@dataclass(frozen=True, slots=True)
class ClientState:
    """The client's state has changed: to be published as an event of the instance."""

    old: State
    new: State


@dataclass(frozen=True, slots=True)
class CloseRows:
    """The client has stopped reading this iterator."""

    rows: int


# -- requests to a worker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call to be executed on the worker's thread; the response is the call's result."""

    call: Call
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class GetMetadata:
    """The response is `WorkerMetadata`."""


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """The response is the worker's metrics: a mapping of `MetricName` to numbers."""


@dataclass(frozen=True, slots=True)
class GetFleet:
    """The response is a `Fleet` or None."""


@dataclass(frozen=True, slots=True)
class FindStore:
    """The response is `StoreFound`."""

    parameters: StoreQueryParameters


@dataclass(frozen=True, slots=True)
class StoreFound:
    """`StoreParts` with the layouts of the parts instead of the parts."""

    layouts: tuple[StoreLayout, ...]
    restoring: tuple[str, ...]
    known: frozenset[str]
    whole: bool


@dataclass(frozen=True, slots=True)
class ReadStore:
    """The response is the method's result, as `Rows` if that is an iterator. `part`: index of a part of a user's own store; None for the
    whole store."""

    parameters: StoreQueryParameters
    part: int | None
    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class QueryState:
    """The response is the answers by partition (None: a global store), with `Rows` in place of an iterator."""

    request: StateQueryRequest[object]


@dataclass(frozen=True, slots=True)
class NextRows:
    """The response is the next `Rows` of an iterator."""

    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of an iterator. `number` identifies it in `NextRows`; None if these were the last."""

    rows: tuple[object, ...]
    number: int | None


# -- notifications of a worker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The worker's new state."""

    state: State


@dataclass(frozen=True, slots=True)
class IncarnationStarted:
    """The worker begins an incarnation; if the process dies, this is the incarnation that has ended."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The process lives, and its worker's last turn was `idle_ms` ago."""

    idle_ms: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of the worker's log: fields of a `logging.LogRecord`."""

    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ListenerCall:
    """A call of one of the client's listeners. `standby`: the standby listener, not the restore listener."""

    standby: bool
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """An operator's command to close the instance, within a number of ms (None: as `close()`)."""

    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has stopped as requested, or, with `failure`, has failed."""

    failure: Failure | None
