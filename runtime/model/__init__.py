"""Vocabulary of the engine: records, ids, states, events, errors, handlers, time, metrics. Imports no other room."""
