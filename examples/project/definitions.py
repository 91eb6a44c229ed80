"""What Dagster shows: Penstock's definitions of `streams.toml`, beside the project's own."""

from __future__ import annotations

import dagster as dg

from examples.project.send import send_samples
from penstock import dagster as penstock


@dg.asset
def sample_records() -> dg.MaterializeResult[None]:
    """Sample records on the input topics: materialise this to send a thousand more."""
    return dg.MaterializeResult(metadata={"records": send_samples()})


defs = dg.Definitions.merge(penstock.defs, dg.Definitions(assets=[sample_records]))
