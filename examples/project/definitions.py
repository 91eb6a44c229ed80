"""Dagster definitions: Penstock's, from `streams.toml`, beside the project's own."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from examples.project.send import send_samples
from penstock import dagster as penstock


@dg.asset
def sample_records() -> dg.MaterializeResult[None]:
    """Sample records on the input topics: materialise this to send a thousand more."""
    return dg.MaterializeResult(metadata={"records": send_samples()})


@dg.definitions
def defs() -> dg.Definitions:
    folder = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)  # `defs/`, where `dg scaffold defs` writes
    return dg.Definitions.merge(penstock.defs, folder, dg.Definitions(assets=[sample_records]))
