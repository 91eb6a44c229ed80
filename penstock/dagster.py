"""The Dagster code location: what `streams.toml` declares as assets, checks, jobs, schedules and sensors.

    import dagster as dg
    from penstock.dagster import definitions

    defs = dg.Definitions.merge(definitions("streams.toml"), dg.Definitions(assets=[...]))

`definitions` finds the file in the folder of the calling module or above it. `defs` are the definitions of the project that the environment
or the current folder names, with Dagster's in-process executor as default; the file is read when `defs` is first used. The same as a
component: `penstock.components`. `TablesIOManager` is the IO manager `tables` in them.
"""

from typing import TYPE_CHECKING

from penstock.orchestration.declarations.applications import Applications
from penstock.orchestration.declarations.project_paths import ProjectPaths
from penstock.runtime.model.extras import extra

with extra("dagster", "penstock.dagster"):
    import dagster as dg

    from penstock.orchestration.definitions import definitions

if TYPE_CHECKING:
    from penstock.assets.tables.io_manager import TablesIOManager

    defs: dg.Definitions


def __getattr__(name: str) -> object:
    """Load what reads a file, or needs Spark, when it is first used."""
    if name == "defs":
        declared = definitions(Applications.of(ProjectPaths.find()))
        found = globals()[name] = dg.Definitions.merge(declared, dg.Definitions(executor=dg.in_process_executor))
        return found
    if name != "TablesIOManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("spark", "TablesIOManager"):
        from penstock.assets.tables.io_manager import TablesIOManager
    return TablesIOManager


def __dir__() -> list[str]:
    return sorted({*globals(), "defs"})  # where Dagster looks for definitions


__all__ = ["Applications", "TablesIOManager", "definitions", "defs"]
