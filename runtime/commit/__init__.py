"""The one order of a commit, and its two ways to the broker."""
