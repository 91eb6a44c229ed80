"""Scheduled health: the checks of what should run, their numbers over time, and the alerts that follow from them."""

from orchestration.health.checks import DESCRIPTIONS
from orchestration.health.examination import examine, examine_one, remember
from orchestration.health.results import CheckResult, Row, by_name, worst

__all__ = ["DESCRIPTIONS", "CheckResult", "Row", "by_name", "examine", "examine_one", "remember", "worst"]
