"""Parser of `streams.toml`: applications with their policies, tables, Spark's settings; and the project's folders on this machine."""
