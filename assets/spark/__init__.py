"""Spark over the state of streams: a session, a source that reads snapshots of stores, and the changelog as the other witness."""
