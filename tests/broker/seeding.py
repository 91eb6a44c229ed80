"""A process that installs a seed and waits for a line before each of its commits, so that it can be killed in between.

python -m tests.broker.seeding <source> <table> <application.id> <bootstrap servers> <state.dir> <seed>
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.runtime.model.ids import TopicPartition
from penstock.runtime.model.offsets import OffsetAndMetadata
from penstock.runtime.seeds import install
from penstock.runtime.seeds.journal import Mark
from penstock.runtime.seeds.writing import SeedWriter
from penstock.runtime.stores import rocks_files
from tests.support.seeds import config_of, topology_of


class WaitingWriter(SeedWriter):
    """Prints what it is about to commit."""

    def commit(self, marks: Mapping[TopicPartition, Mark], inputs: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        self._transactions.flush()  # uncommitted records are on the logs too
        print("offsets" if inputs else "commit", flush=True)
        sys.stdin.readline()
        super().commit(marks, inputs)


def main(source: str, table: str, application_id: str, bootstrap_servers: str, state_dir: str, seed: str) -> None:
    install.SeedWriter = WaitingWriter  # type: ignore[attr-defined]  # replaces the one that does not wait
    install._TRANSACTION_RECORDS, rocks_files._MOST_ENTRIES = 10, 7
    config = config_of(application_id, bootstrap_servers, Path(state_dir))
    install.install_seed(topology_of(source, table).resolved(config), config, seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
