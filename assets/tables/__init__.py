"""Tables that Spark makes of stores: an asset, a check and a place in the lineage for each `[[tables]]` of `streams.toml`.

Materialising a table takes a snapshot of its application (or reads the changelog), has Spark make the table in a process of its own, and
shows what came of it. An asset of your own takes a table as a DataFrame: see `io_manager`.
"""

from assets.tables.definitions import JOB, table_definitions
from assets.tables.io_manager import TablesIOManager
from assets.tables.lineage import source_keys, topics_of_all

__all__ = ["JOB", "TablesIOManager", "source_keys", "table_definitions", "topics_of_all"]
