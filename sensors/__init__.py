"""Dagster sensors: they watch applications and start the runs that these need."""
