"""Incarnations of a worker: its lives in the group, each with a transactional id and a transport of its own (rules.md, 21).

After a fence the transport is dropped with all tasks, and the next incarnation joins under a new name. Consumer, restorer, admin client and
the memory of the stores live as long as the worker.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.commit.order import Commit, Transport
from penstock.runtime.config.environment import BUILD
from penstock.runtime.coordination import Coordination, Member
from penstock.runtime.worker.spec import WorkerSpec
from penstock.runtime.worker.task_factory import TaskFactory


@dataclass(slots=True)
class Incarnation:
    """One life of a worker in the group."""

    number: int
    transactional_id: str
    transport: Transport
    commit: Commit
    granted: bool = False
    """True after the first grant, which may be empty. Before that nothing can be committed: the guard needs a grant."""


class Incarnations:
    """Creates the incarnations of one worker, and joins with them. Used by the worker's thread only."""

    def __init__(
        self,
        spec: WorkerSpec,
        new_transport: Callable[[str], Transport],
        coordination: Coordination,
        task_factory: TaskFactory,
    ) -> None:
        """`new_transport` makes the transport of a transactional id, not started."""
        self._spec = spec
        self._new_transport = new_transport
        self._coordination = coordination
        self._task_factory = task_factory
        self.current = self._create(0)

    def _create(self, previous: int) -> Incarnation:
        spec = self._spec
        number = max(spec.clock.wall_ms(), previous + 1)  # the later incarnation has the larger number, even if the clock was set back
        transactional_id = f"{spec.application_id}-{spec.instance}-{number}-{spec.identity.number}"
        transport = self._new_transport(transactional_id)
        return Incarnation(number, transactional_id, transport, Commit(transport, spec.events, spec.application_id))

    def join(self) -> None:
        """Announce the current incarnation, once its transactional id is initialised (coordination.md, 7). Blocks until the broker answers.
        Raises TaskMigratedError when that is given up."""
        spec, current = self._spec, self.current
        spec.events.begin_incarnation(current.number)
        spec.on_incarnation(current.number)
        current.transport.start()
        self._task_factory.attach(current.transport)
        self._coordination.start(member_record(spec, current.number, current.transactional_id))

    def renew(self) -> None:
        """Close the current incarnation, and join as the next one."""
        self.close()
        self.current = self._create(self.current.number)
        self.join()

    def close(self) -> None:
        """Drop the uncommitted work of the current incarnation. Never raises."""
        self.current.transport.close()


def member_record(spec: WorkerSpec, incarnation: int, transactional_id: str) -> Member:
    """Return the member record of an incarnation."""
    config, identity = spec.config, spec.identity
    return Member(
        instance=spec.instance,
        incarnation=incarnation,
        transactional_id=transactional_id,
        host=socket.gethostname(),
        pid=identity.pid,
        log_path=spec.log_path,
        state_dir=str(config.state_dir.resolve()),  # shows whose disk this is
        metrics_port=config.metrics_port,
        application_server=str(config.application_server or ""),
        worker=identity.number,
        workers=identity.count,
        build=os.environ.get(BUILD, ""),
    )
