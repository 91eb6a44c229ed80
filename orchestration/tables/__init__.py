"""Versions of the tables that Spark builds, and the decision when a table is due to be rebuilt."""
