"""The control plane: desired and current state of instances, alerts, and operations."""

MAY_BREAK = "\u200b"
"""Zero-width space: where a page of Dagster may break a long name. The command line removes it from names that are pasted."""
