"""Request of a backfill: an application's own program over records of the past (docs/history.md)."""

from __future__ import annotations

import msgspec

KAFKA = "kafka"
"""Location of an input that is the topic itself."""


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill, as the command passes it to the process that runs Spark. `inputs`: the location of each topic's records, a path or URI of
    a table, or `kafka`. `until`: a time, offsets, or `latest`. `rejected` None: a record that pauses its task ends the run."""

    application: str
    inputs: dict[str, str]
    until: str
    seed: str
    outputs: str | None = None
    rejected: str | None = None
    table_format: str = "parquet"
    dry_run: bool = False
    restart: bool = False
    as_json: bool = False
