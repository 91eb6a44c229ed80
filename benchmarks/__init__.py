"""Measurements: always a ratio to something measured in the same run."""
