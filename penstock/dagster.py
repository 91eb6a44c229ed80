"""The Dagster code location: what `streams.toml` declares as assets, checks, jobs, schedules and sensors.

    import dagster as dg
    from penstock.dagster import defs

    defs = dg.Definitions.merge(defs, dg.Definitions(assets=[...]))

`defs` is read from the project's `streams.toml` when this module is imported; `definitions(applications)` makes the same of declarations
that were read otherwise. `TablesIOManager` is the IO manager `tables` in them.
"""

from penstock.assets.tables.io_manager import TablesIOManager
from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.definitions import definitions, defs

__all__ = ["Applications", "TablesIOManager", "definitions", "defs"]
