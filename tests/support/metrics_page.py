"""The metrics that docs/metrics.md lists."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.runtime.model.metrics import CLIENT, prometheus_name
from tests.support import ROOT


@dataclass(frozen=True, slots=True, order=True)
class Documented:
    """A metric of the page; `type`: counter or gauge; `tags`, sorted, with those that all metrics have."""

    group: str
    name: str
    type: str
    tags: tuple[str, ...]

    @property
    def prometheus(self) -> str:
        return prometheus_name(self.group, self.name)


def documented_metrics() -> set[Documented]:
    """Return the metrics of the page, from the tables whose heading is a group."""
    found: set[Documented] = set()
    group = ""
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if line.startswith("## "):
            group = next(iter(re.findall(r"^## `(.+)`", line)), "")
        elif group and line.startswith("| `"):
            names, _, kind, _, tags, _ = (cell.strip() for cell in line.strip("|").split("|"))
            common = {"client-id"} if group == CLIENT else {"client-id", "thread-id"}
            for alternative in tags.split(";"):
                all_tags = tuple(sorted(common.union(re.findall("`(.+?)`", alternative))))
                found.update(Documented(group, name, kind, all_tags) for name in re.findall("`(.+?)`", names))
    return found
