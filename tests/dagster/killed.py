"""`python -m tests.dagster.killed RUN-BOOK STEP [ARGUMENT …]`: starts a run-book and kills its own process with SIGKILL at that step, after
the step's effects and before the record of its completion. `replay:inside` dies in the middle of a transaction.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from confluent_kafka import Producer

from penstock.orchestration.database import audit
from penstock.orchestration.database.models import StepState
from penstock.orchestration.dead_letters import replay
from penstock.orchestration.dead_letters.replay import DeadLetter
from penstock.orchestration.instances.operations import Operations
from penstock.orchestration.resets.target import Target
from penstock.orchestration.run_books import (
    PausedRecord,
    RebuildGlobalStore,
    ReplayDeadLetters,
    Request,
    ResetApplication,
    RestartInstance,
    RestoreGlobalTopic,
    ResumeTask,
    RunBook,
    SkipRecord,
    Step,
)
from penstock.orchestration.run_books.base import Findings
from penstock.runtime.model.ids import TaskId

WHO = Request("a test")
Make = Callable[[Operations, list[str]], RunBook]


def _skip(operations: Operations, arguments: list[str]) -> RunBook:
    (application,) = operations.applications.applications
    record = PausedRecord(TaskId(0, 0), f"{application.id}-in", 0, int(arguments[0]))
    return SkipRecord(application, operations.control_plane, record, WHO)


MAKE: dict[str, Make] = {
    SkipRecord.NAME: _skip,
    ResumeTask.NAME: lambda project, _: ResumeTask(project.applications.applications[0], project.control_plane, TaskId(0, 0), WHO),
    ReplayDeadLetters.NAME: lambda project, _: ReplayDeadLetters(project.applications.applications[0], project.control_plane, WHO),
    RebuildGlobalStore.NAME: lambda project, _: RebuildGlobalStore(
        project.applications.applications[0], project.control_plane, "names", WHO
    ),
    RestoreGlobalTopic.NAME: lambda project, _: RestoreGlobalTopic(
        project, project.applications.applications[0], f"{project.applications.applications[0].id}-names", WHO
    ),
    ResetApplication.NAME: lambda project, arguments: ResetApplication(
        project,
        project.applications.applications[0],
        Target.parse((arguments or ["earliest"])[0], audit.now()),
        WHO,
        internal_topics=arguments[1:],
    ),
    RestartInstance.NAME: lambda project, _: RestartInstance(project, project.applications.instances[0], WHO),
}


def make(operations: Operations, name: str, *arguments: str) -> RunBook:
    """Create a run-book for the tests' one application, by its name."""
    return MAKE[name](operations, list(arguments))


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, step: str, *arguments: str) -> None:
    end_step = RunBook.end_step
    last, _, inside = step.partition(":")

    def end_or_die(self: RunBook, number: int, step: Step, state: StepState, findings: Findings) -> None:
        if step.name == last and not inside:
            _die()
        end_step(self, number, step, state, findings)

    RunBook.end_step = end_or_die  # type: ignore[method-assign]  # this process exists in order to die there
    if inside:
        send = replay._send
        sent: list[str] = []

        def send_or_die(producer: Producer, record: DeadLetter, marks_topic: str, by: str) -> None:
            send(producer, record, marks_topic, by)
            sent.append(record.place)
            if len(sent) == 2:
                producer.flush(10)  # the broker has both, in an open transaction
                _die()

        replay._send = send_or_die
    make(Operations.find(), name, *arguments).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
