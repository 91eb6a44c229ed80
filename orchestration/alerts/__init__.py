"""Alerts: the events that open and resolve them, their text, and their notifications."""
