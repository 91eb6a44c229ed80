"""The changelog of a store: writing it, restoring from it, checkpoint files."""
