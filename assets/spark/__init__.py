"""State in Spark: sessions, a data source for snapshots of stores, and changelogs, from which the same state is computed independently."""
