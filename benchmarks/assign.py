"""`python -m benchmarks assign`: time to compute an assignment, for applications of several sizes.

The leader computes it in its worker's thread, between processing for that worker's tasks, so a computation has to be short. For each size:
all members are new (nothing runs), nothing changed, a member has died, and a member has joined; with state and a standby per task, three
zones, and racks for locality. The last column divides the time of the slowest computation by that of the smallest application, next to the
growth of tasks times members: machines differ, the ratio does not.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from penstock.orchestration.drawing.console import stdout_console
from penstock.runtime.coordination.assignor import Candidate
from penstock.runtime.coordination.copies import CopyRules, Placement, place
from penstock.runtime.coordination.racks import RackRules, RackStrategy
from penstock.runtime.model.ids import TaskId

FLEETS = ((100, 10), (300, 30), (1_000, 100), (2_000, 100))
WORKERS, ZONES, PARTS = 2, 3, 10
POSITION = 1_000_000


def main(repeats: Annotated[int, typer.Option(help="Rounds of each kind; the shortest counts.", min=1)] = 3) -> None:
    """Measure the assignor."""
    smallest: float | None = None
    rows = []
    for tasks, members in FLEETS:
        times = _measure(tasks, members, repeats)
        slowest = max(times)
        smallest = smallest or slowest
        growth = tasks * members / (FLEETS[0][0] * FLEETS[0][1])
        shown = " | ".join(f"{1000 * each:,.0f}" for each in times)
        rows.append(f"| {tasks:,} | {members} | {shown} | {slowest / smallest:.0f} (of {growth:.0f}) |")
    console = stdout_console()
    console.print("| tasks | members | all are new, ms | at rest, ms | one has died, ms | one has come, ms | grows by |", soft_wrap=True)
    console.print("|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        console.print(row, soft_wrap=True)
    console.print(f"Members: workers, {WORKERS} in an instance, over {ZONES} zones; each task with state and one standby.", soft_wrap=True)


def _measure(count: int, members: int, repeats: int) -> list[float]:
    """Return the seconds for each kind of computation."""
    tasks = [TaskId(part, number) for part in range(PARTS) for number in range(count // PARTS)]
    racks = {task: [frozenset({f"zone-{task.partition % ZONES}"})] for task in tasks}
    rules = CopyRules(frozenset(tasks), 10_000, 1, 2, ("zone",), RackRules(RackStrategy.MIN_TRAFFIC, racks=racks))
    new = [_member(number) for number in range(members)]
    _, placed = _timed(new, tasks, rules, 1)
    resting = [_with(member, placed) for member in new]
    kinds = (new, resting, resting[1:], [*resting, _member(members)])
    return [_timed(kind, tasks, rules, repeats)[0] for kind in kinds]


def _member(number: int) -> Candidate:
    zone = f"zone-{number // WORKERS % ZONES}"
    return Candidate(f"{number:04d}", instance=f"instance-{number // WORKERS:04d}", rack=zone, tags={"zone": zone})


def _with(member: Candidate, placed: Placement) -> Candidate:
    """Return the member as it is after it has carried out the assignment."""
    running, follows = placed.active[member.name], placed.standby[member.name]
    return replace(member, running=running, follows=follows, caught_up=follows, positions=dict.fromkeys(running | follows, POSITION))


def _timed(members: list[Candidate], tasks: list[TaskId], rules: CopyRules, repeats: int) -> tuple[float, Placement]:
    shortest = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        placed = place(members, tasks, rules)
        shortest = min(shortest, time.process_time() - begun)
    return shortest, placed
