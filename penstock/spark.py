"""State as DataFrames, and DataFrames as state. (`spark.read.format("penstock.state")` needs the session that `spark_session` makes.)"""

from penstock.runtime.model.extras import extra

with extra("spark", "penstock.spark"):
    from penstock.assets.spark.changelog.reading import ChangelogTable, read_changelog
    from penstock.assets.spark.changelog.store_log import StoreLog, store_log
    from penstock.assets.spark.seeds.command import offsets_as_of, write_seed
    from penstock.assets.spark.session.session import spark_session

__all__ = ["ChangelogTable", "StoreLog", "offsets_as_of", "read_changelog", "spark_session", "store_log", "write_seed"]
