"""Tables that Spark makes from stores: an asset, a check and the lineage for each `[[tables]]` of `streams.toml`.

Materialising a table takes a snapshot of its application (or reads the changelog), runs Spark in a child process to make the table, and
shows the result. Your own assets can take a table as a DataFrame: see `io_manager`.
"""
