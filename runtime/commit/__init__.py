"""The order of a commit, and its two transports to the brokers."""
