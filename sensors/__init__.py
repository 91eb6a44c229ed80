"""Dagster sensors: what watches the fleet and starts what is to be done."""
