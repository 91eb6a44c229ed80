"""The DSL: streams and tables. Only builds the nodes of a topology; runs nothing."""
