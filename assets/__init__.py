"""Dagster assets: the instances that run, and the tables that Spark reads from their state."""
