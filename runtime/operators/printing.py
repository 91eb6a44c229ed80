"""`print`: a line per record, to standard output or a file (Kafka Streams' `KStreamPrint`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.operators.base import OperatorSupplier
from runtime.operators.context import Forward, NodeContext


@dataclass(frozen=True, slots=True)
class Print(OperatorSupplier):
    """`text(key, value)` behind the label. Standard output is the one of the moment; a file is appended to, so that tasks share it, and
    written out with each commit."""

    label: str
    text: Callable[..., str]
    path: Path | None = None

    def build(self, context: NodeContext, forward: Forward) -> Forward:
        label, text = self.label, self.text
        if self.path is None:

            def to_sys_out(key: object, value: object, timestamp: int) -> None:
                print(f"[{label}]: {text(key, value)}", file=sys.stdout, flush=True)

            return to_sys_out
        file = self.path.open("a", encoding="utf-8")
        context.hooks.before_commit.append(file.flush)
        context.hooks.close.append((context.name, file.close))
        write = file.write

        def to_file(key: object, value: object, timestamp: int) -> None:
            write(f"[{label}]: {text(key, value)}\n")

        return to_file


def key_and_value(key: object, value: object) -> str:
    """What is printed by default."""
    return f"{key}, {value}"
