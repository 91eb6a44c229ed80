"""Result of a check: severity, a sentence, numbers to plot, and a table with a row for each checked object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.orchestration.declarations.policies import Severity

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one checked object. `problem` is empty if there is none."""

    cells: Mapping[str, Cell]
    severity: Severity = Severity.INFO
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of one application. `alert`: the kind of alert to open for a problem; None if another alert covers it."""

    name: str
    application: str
    rows: tuple[Row, ...]
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    problems: tuple[tuple[Severity, str], ...] = ()
    alert: str | None = None

    @property
    def severity(self) -> Severity:
        """The worst severity of the rows and of the application as a whole."""
        return worst([*(row.severity for row in self.rows), *(severity for severity, _ in self.problems)])

    @property
    def texts(self) -> list[str]:
        """Sentences about the problems."""
        own = [text for _, text in self.problems]
        return [*own, *(row.problem for row in self.rows if row.problem)]


def worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=lambda severity: severity.rank, default=Severity.INFO)


def beyond(value: float, warn: float, error: float) -> Severity:
    """Return the severity of a number; a limit of 0 means no limit."""
    if error and value >= error:
        return Severity.ERROR
    return Severity.WARN if warn and value >= warn else Severity.INFO


def by_name(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """Return the results grouped by check, over all applications."""
    found: dict[str, list[CheckResult]] = {}
    for result in results:
        found.setdefault(result.name, []).append(result)
    return found
