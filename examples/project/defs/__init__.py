"""Your Dagster definitions, and those that `dg scaffold defs` adds: every module in this folder is loaded."""
