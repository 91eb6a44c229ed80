"""Which of an instance's workers a worker is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Seat:
    """`number`: of the worker in its instance, from 1. `of`: how many workers the instance was configured to have. `pid`: the process to
    which signals for the instance go, which need not be the worker's own."""

    number: int = 1
    of: int = 1
    pid: int = field(default_factory=os.getpid)

    def thread_name(self, instance: str) -> str:
        """The worker's name, as Kafka Streams names its stream threads."""
        return f"{instance}-StreamThread-{self.number}"

    def share(self, budget: int) -> int:
        """This worker's part of a budget that is the instance's."""
        return budget // self.of
