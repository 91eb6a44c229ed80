"""Spark sessions: the master to use, code for executors, explanations of errors, progress of jobs."""
