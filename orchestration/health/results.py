"""What a check found: how bad it is, what is wrong in words, numbers to be plotted, and a table with a row for each thing looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestration.policies import Severity

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was looked at. `problem` is empty where all is well."""

    cells: Mapping[str, Cell]
    severity: Severity = Severity.INFO
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one application. `alert` is the kind of alert that follows from a problem; None where another one tells of it."""

    name: str
    application: str
    rows: tuple[Row, ...]
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    problems: tuple[tuple[Severity, str], ...] = ()
    alert: str | None = None

    @property
    def severity(self) -> Severity:
        """The worst of the rows, and of what concerns the application as a whole."""
        return worst([*(row.severity for row in self.rows), *(severity for severity, _ in self.problems)])

    @property
    def texts(self) -> list[str]:
        """What is wrong, in words."""
        own = [text for _, text in self.problems]
        return [*own, *(row.problem for row in self.rows if row.problem)]


def worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=lambda severity: severity.rank, default=Severity.INFO)


def beyond(value: float, warn: float, error: float) -> Severity:
    """How bad a number is; a limit of 0 is none."""
    if error and value >= error:
        return Severity.ERROR
    return Severity.WARN if warn and value >= warn else Severity.INFO


def by_name(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """The results of each check, over all applications."""
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(result.name, []).append(result)
    return found
