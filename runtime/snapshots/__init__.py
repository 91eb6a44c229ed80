"""Snapshots of state: written by tasks at a commit, gathered into one of the application, copied elsewhere, found and read by others."""
