"""What an instance's process and those of its workers say to each other (`channel.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.states import State
from runtime.stores.base import StoreLayout
from runtime.worker.calls import Call
from runtime.worker.channel import Failure
from runtime.worker.queries import StoreQueryParameters
from runtime.worker.seat import Seat

# -- told to a worker, besides `Stop` ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first word: all that a worker has to know. `settings` are those that the client was given; `factory` is `module:function`;
    `log_levels` are those of the instance's process by logger, "" for the root; `stacks` is a file descriptor where the stacks of all
    threads are written at SIGUSR1."""

    settings: Mapping[str, object]
    factory: str
    instance: str
    seat: Seat
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
class LetGo:
    """Nobody reads on in this iteration."""

    rows: int


# -- asked of a worker -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """To be carried out on the worker's thread; the answer is the call's."""

    call: Call
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Answered by `WorkerMetadata`."""


@dataclass(frozen=True, slots=True)
class MetricValues:
    """Answered by the worker's metrics: a mapping of `MetricName` to numbers."""


@dataclass(frozen=True, slots=True)
class FleetKnown:
    """Answered by a `Fleet` or None."""


@dataclass(frozen=True, slots=True)
class FindStore:
    """Answered by `StoreFound`."""

    parameters: StoreQueryParameters


@dataclass(frozen=True, slots=True)
class StoreFound:
    """As `Found`, with the layouts of the parts in the place of these."""

    layouts: tuple[StoreLayout, ...]
    restoring: tuple[str, ...]
    known: frozenset[str]
    whole: bool


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Answered by what the method gives; by `Rows` if that is an iterator. `part`: of this part, counted from 0, of a store of the user's
    own; otherwise of the whole store."""

    parameters: StoreQueryParameters
    part: int | None
    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NextRows:
    """Answered by the next `Rows` of an iteration."""

    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of an iteration. `number` asks for more; None if these were the last."""

    rows: tuple[object, ...]
    number: int | None


# -- told by a worker --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateIs:
    """The worker's state."""

    state: State


@dataclass(frozen=True, slots=True)
class Joins:
    """The worker begins an incarnation; what ends with the process ends under this number."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The process lives, and its worker's last turn was so long ago."""

    idle_ms: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of the worker's log: fields of a `logging.LogRecord`."""

    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ListenerCall:
    """A listener of the client's is to be told. `standby`: the standby listener, not the restore listener."""

    standby: bool
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CloseWanted:
    """An operator's command says that the instance is to close, within so long (None: as `close()`)."""

    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has ended as it was told to, or, with `failure`, has failed."""

    failure: Failure | None
