"""Scheduled health checks of declared applications, past measurements, and the resulting alerts."""

from penstock.orchestration.health.checks import DESCRIPTIONS, CheckResult, Row, by_name, worst
from penstock.orchestration.health.examination import examine, examine_one, facts, is_new, remember, results_of
from penstock.orchestration.health.figures import report

__all__ = [
    "DESCRIPTIONS",
    "CheckResult",
    "Row",
    "by_name",
    "examine",
    "examine_one",
    "facts",
    "is_new",
    "remember",
    "report",
    "results_of",
    "worst",
]
