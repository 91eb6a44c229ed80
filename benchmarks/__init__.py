"""Benchmarks: each result is a ratio to another program or step measured in the same run."""
