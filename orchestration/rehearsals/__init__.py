"""Rehearsals: the running build and a new one over the same state and input, side by side, without touching the application."""
