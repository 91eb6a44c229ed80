"""Configuration: its keys, validation, and values from the environment."""
