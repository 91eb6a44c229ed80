"""Snapshots of whole applications: taken from the instances, kept, exported and deleted."""
