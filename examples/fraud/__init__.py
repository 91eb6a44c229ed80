"""Alerts on stolen cards."""
