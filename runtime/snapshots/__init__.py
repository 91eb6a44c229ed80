"""Snapshots of state: written by tasks at a commit, combined into a snapshot of the application, exported, found and read."""
