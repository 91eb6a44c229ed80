"""Summaries of a building's rooms, from the readings of their sensors."""
